"""What rank 0 does with a suite: one job after another, every result on disk before the next begins."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bench.errors import RecordError, SpecError
from bench.planner.meters import ALLOCATED_MARGIN
from bench.planner.plan import CasePlan, plan_case
from bench.planner.stored import plan_record
from bench.progress import Progress
from bench.records.folder import case_folder, read_case
from bench.records.merge import CaseEnd, add_verification, merge_case, write_case
from bench.records.planned import PlanRecord
from bench.records.runfolder import RunFolder
from bench.records.schema import CaseRecord
from bench.spec.case import Case
from bench.spec.hardware import Gpu, gpu
from bench.spec.layout import remarks
from bench.spec.preflight import why_not
from bench.supervisor.contract import Job, JobEnd, SessionInterrupted, SessionLost
from bench.supervisor.elsewhere import moved
from bench.supervisor.job_watch import OnPoll
from bench.supervisor.session import Session

VERIFY_TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3}
"""Relative difference of two losses of the same weights: rounding of differently shaped passes."""
OP_BUILD_TIMEOUT_S = 900.0
_FINISHED = ("ok", "oom", "unsupported", "skipped")
"""Statuses that `--resume` does not run again; a crash or a timeout may have been the machine's fault."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says beyond the suite."""

    repeats: int = 1
    interleave: bool = False
    """Round by round over the cases, so that drift of the machine hits all of them alike."""
    force: bool = False
    """Run cases that the plan says cannot fit."""
    timeout_s: float | None = None
    """Replaces every case's own."""


class Leader:
    """Runs the cases of one run folder, one launch at a time."""

    def __init__(self, session: Session, folder: RunFolder, options: Options, python: Path | None = None) -> None:
        """Prepare; nothing starts yet.

        Args:
            session: the ranks.
            folder: where results go.
            options: of the command line.
            python: interpreter of another environment to run in; None for this one.
        """
        self.session, self.folder, self.options, self.python = session, folder, options, python
        self.built: set[str] = set()

    def todo(self) -> list[tuple[Case, int]]:
        """Cases and repeats in order, less the finished ones."""
        cases, repeats = self.folder.cases, range(1, self.options.repeats + 1)
        if self.options.interleave:
            order = [(case, repeat) for repeat in repeats for case in cases]
        else:
            order = [(case, repeat) for case in cases for repeat in repeats]
        return [(case, repeat) for case, repeat in order if not self._finished(case, repeat)]

    def _finished(self, case: Case, repeat: int) -> bool:
        path = case_folder(self.folder.path, case.id, repeat) / "case.json"
        if not path.is_file():
            return False
        try:
            record = read_case(path)
        except RecordError:
            return False
        return record.case == case and record.status in _FINISHED

    def one(self, case: Case, repeat: int, progress: Progress) -> CaseRecord:
        """Run one launch of a case and write its record.

        Raises:
            SessionInterrupted, SessionLost: the ranks cannot go on; earlier records are on disk.
            OSError: the record could not be written (disk full); those before it are on disk.
        """
        plan, predicted, unplanned = self._plan(case)
        started_at, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        blank = CaseEnd(
            run_id=self.folder.record.run_id, case=case, repeat=repeat, status="ok", reason=None,
            failing_rank=None, log_tail=None, world_size=self.session.world_size, started_at=started_at,
            wall_s=0.0, remarks=remarks(case, self.session.world_size), plan=predicted, unplanned=unplanned,
        )  # fmt: skip
        refused = self._refused(case, plan)
        if refused is not None:
            status, reason = refused
            return self._write(dataclasses.replace(blank, status=status, reason=reason), None)
        checkpoints = self.folder.path / ".checkpoints" / f"{case.id}.r{repeat}"
        try:
            job_end = self._measure(case, repeat, checkpoints, progress)
            end = dataclasses.replace(
                blank, status=job_end.status, reason=job_end.reason or None, failing_rank=job_end.failing_rank,
                log_tail=job_end.log_tail if job_end.status != "ok" else None, wall_s=time.monotonic() - start,
            )  # fmt: skip
            verification = self._verify(case, repeat, checkpoints / "export") if job_end.status == "ok" else None
            return self._write(end, job_end.files, verification, checkpoints)
        finally:
            shutil.rmtree(checkpoints, ignore_errors=True)

    def _refused(self, case: Case, plan: CasePlan | None) -> tuple[str, str] | None:
        """Status and reason of a case that is not started at all."""
        reason = why_not(case, self.session.world_size)
        if reason is not None:
            return "unsupported", reason
        if self.options.force or plan is None or plan.gpu is None or plan.fits is not False:
            return None
        if plan.shortfall_bytes < ALLOCATED_MARGIN * plan.gpu.usable_bytes:
            return None  # within the plan's own margin: only the run can tell
        return "skipped", f"{plan.reason}; --force runs it all the same"

    def _plan(self, case: Case) -> tuple[CasePlan | None, PlanRecord | None, dict[str, str]]:
        """What the plan says on this node's devices, as it decides and as it is stored, and why parts are null."""
        try:
            device, per_node = self._gpu(), self.folder.record.environment.devices_per_node
            plan = plan_case(case, self.session.world_size, device, per_node)
            return plan, *plan_record(plan)
        except Exception as error:  # whatever is wrong with a prediction, the measurement goes on
            return None, None, {"plan": f"planning failed: {type(error).__name__}: {error}"}

    def _gpu(self) -> Gpu | None:
        """This node's accelerator; None on CPU and for a device that no catalogue knows."""
        environment = self.folder.record.environment
        try:
            return gpu(environment.device) if environment.device_kind == "cuda" else None
        except SpecError:
            return None

    def _measure(self, case: Case, repeat: int, checkpoints: Path, progress: Progress) -> JobEnd:
        if case.offload_optimizer == "cpu" and "cpu_adam" not in self.built:
            end = self._build_operators(["cpu_adam"])
            if end.status != "ok":
                return end
            self.built.add("cpu_adam")
        payload = {"case": case.model_dump(mode="json"), "checkpoint_dir": str(checkpoints)}
        job = Job(
            name=f"{case.id}.r{repeat}", entry="bench.worker.main:run", payload=payload,
            timeout_s=self.options.timeout_s or case.timeout_s,
        )  # fmt: skip
        return self._start(job, progress.poll)

    def _start(self, job: Job, on_poll: OnPoll | None = None) -> JobEnd:
        return self.session.run(moved(job, self.python) if self.python else job, on_poll=on_poll)

    def _build_operators(self, names: list[str]) -> JobEnd:
        payload = {"operators": names, "lock_timeout_s": OP_BUILD_TIMEOUT_S - 30}
        job = Job("operators", "bench.worker.ops:build", payload, OP_BUILD_TIMEOUT_S, ranks="one_per_node")
        return self._start(job)

    def _verify(self, case: Case, repeat: int, export: Path) -> tuple[dict[str, Any] | None, str | None] | None:
        """Load the export in a fresh process on rank 0; (facts, why not)."""
        if not export.is_dir():
            return None
        payload = {"case": case.model_dump(mode="json"), "export": str(export)}
        timeout = self.options.timeout_s or case.timeout_s
        job = Job(f"{case.id}.r{repeat}.verify", "bench.worker.verify:run", payload, timeout, ranks="rank0")
        end = self._start(job)
        if end.status != "ok":
            return None, f"reloading ended {end.status}: {end.reason}"
        return json.loads((end.files / "rank0" / "verify.json").read_text()), None

    def _write(
        self, end: CaseEnd, files: Path | None, verification: tuple | None = None, checkpoints: Path | None = None
    ) -> CaseRecord:
        try:
            record, steps, scores = merge_case(end, files)
        except (RecordError, ValueError, KeyError) as error:
            reason = f"what the ranks left cannot be merged: {error}"
            record, steps, scores = merge_case(dataclasses.replace(end, status="crashed", reason=reason), None)
        if verification is not None:
            add_verification(record, *verification, tolerance=VERIFY_TOLERANCE[end.case.precision])
        write_case(self.folder.path, record, steps, scores, files)
        if end.case.keep_checkpoint and record.checkpoint and checkpoints and (checkpoints / "export").is_dir():
            target = case_folder(self.folder.path, end.case.id, end.repeat) / "export"
            shutil.move(checkpoints / "export", target)
        return record


def lead(leaders: Sequence[Leader]) -> None:
    """Run everything that is not finished yet; several leaders take turns, launch by launch (A B A B …).

    Raises:
        SessionInterrupted, SessionLost, OSError: after run.json says so; see `Leader.one`.
    """
    turns = [turn for turns in zip_longest(*(_turns(leader) for leader in leaders)) for turn in turns if turn]
    progress = Progress(total=len(turns))
    try:
        for leader, case, repeat in turns:
            progress.begin(case, repeat, side=leader.folder.path.name if len(leaders) > 1 else "")
            progress.end(leader.one(case, repeat, progress))
    except (SessionInterrupted, SessionLost, OSError) as error:
        for leader in leaders:
            with suppress(OSError):
                leader.folder.interrupted(f"{type(error).__name__}: {error}")
        raise
    finally:
        progress.close()
    for leader in leaders:
        leader.folder.finish()


def _turns(leader: Leader) -> list[tuple[Leader, Case, int]]:
    return [(leader, case, repeat) for case, repeat in leader.todo()]
