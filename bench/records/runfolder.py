"""The folder of one run: made, or taken up again, and never mixed with another run's."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.errors import RecordError
from bench.records.folder import case_files, read_run, write_record
from bench.records.schema import Environment, RunRecord
from bench.spec.case import Case
from bench.spec.suite import Suite

FREE_BYTES = 200 * 2**20
"""Less free disk than this and a run does not start: its records alone could fill it."""
_DECIDING = ("python", "torch", "deepspeed", "transformers", "peft")


class RunFolder:
    """`results/<run>`: run.json and the cases to do."""

    def __init__(self, path: Path, record: RunRecord, cases: Sequence[Case]) -> None:
        self.path, self.record, self.cases = path, record, tuple(cases)

    @classmethod
    def open(
        cls, path: Path | None, suite: Suite, resume: bool, facts: dict[str, Any], environment: Environment
    ) -> RunFolder:
        """Create the folder, or continue in it.

        Args:
            path: the folder; None makes `results/<suite>-<time>`.
            suite: what is run, with overrides applied and cases selected.
            resume: take up an existing run.
            facts: launcher, world_size, hosts, hostfile, command, overrides, repeats, suite_text.
            environment: of this node.

        Raises:
            RecordError: the folder holds another run, or cannot be written.
        """
        now = datetime.now(UTC)
        path = path or Path("results") / f"{suite.name}-{now:%Y%m%d-%H%M%S}"
        record = RunRecord(
            run_id=f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}", suite=suite.name,
            suite_description=suite.description, planned=[case.id for case in suite.cases],
            headline=suite.headline.model_dump() if suite.headline else None,
            started_at=now.isoformat(timespec="seconds"), environment=environment, **facts,
        )  # fmt: skip
        if (path / "run.json").exists():
            record = _continued(path, record, resume)
        elif path.is_dir() and any(path.iterdir()):
            raise RecordError(f"--out {path} is not empty and holds no run.json; choose another folder")
        elif resume:
            raise RecordError(f"--resume: {path} holds no run; leave --resume out, or name the run's folder with --out")
        _check_writable(path)
        folder = cls(path, record, suite.cases)
        folder.save()
        return folder

    def save(self) -> None:
        """Write run.json."""
        write_record(self.path / "run.json", self.record)

    def interrupted(self, why: str) -> None:
        """Say in run.json that the run ended early."""
        self.record.interrupted = why
        self.finish()

    def finish(self) -> None:
        """Say in run.json whether every planned case and repeat has a record, and when."""
        self.record.finished_at = datetime.now(UTC).isoformat(timespec="seconds")
        expected = len(self.record.planned) * self.record.repeats
        self.record.complete = len(list(case_files(self.path))) >= expected
        shutil.rmtree(self.path / ".checkpoints", ignore_errors=True)
        self.save()


def _continued(path: Path, new: RunRecord, resume: bool) -> RunRecord:
    """The existing run's record, if this one continues it."""
    old = read_run(path)
    if not resume:
        raise RecordError(f"--out {path} holds the run {old.run_id}; continue it with --resume, or choose another")
    for field in ("suite", "world_size"):
        if getattr(old, field) != getattr(new, field):
            raise RecordError(
                f"--resume: {path} was run with {field} {getattr(old, field)}, now it is {getattr(new, field)}"
            )
    for name in _DECIDING:
        before, now = old.environment.versions.get(name), new.environment.versions.get(name)
        if before != now:
            raise RecordError(f"--resume: {path} was run with {name} {before}, now it is {now}; start a new folder")
    if old.environment.device != new.environment.device:
        raise RecordError(f"--resume: {path} was run on {old.environment.device}, this is {new.environment.device}")
    planned = old.planned + [case_id for case_id in new.planned if case_id not in old.planned]
    update = {"planned": planned, "repeats": max(old.repeats, new.repeats), "interrupted": None, "complete": False}
    return old.model_copy(update=update)


def _check_writable(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"--out {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise RecordError(f"--out {path} is not writable")
    free = shutil.disk_usage(path).free
    if free < FREE_BYTES:
        raise RecordError(f"--out {path}: {free / 2**20:.0f} MiB of disk are free, at least 200 MiB are needed")
