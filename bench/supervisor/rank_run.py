"""One job's worker on this rank, from request to verdict."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import jobfolder
from bench.supervisor.contract import Limits, RankEnd
from bench.supervisor.node_client import WorkerLink
from bench.supervisor.orders import Order
from bench.supervisor.processes import oom_kill_counter
from bench.supervisor.verdict import ASKED_TO_STOP, Exit, judge_exit
from bench.supervisor.worker_process import WorkerProcess

_TAIL_BYTES = 8192
_TAIL_LINES = 40
_STOP_SLACK_S = 10.0
_SETTLE_S = 1.0


class RankRun:
    """Starts the worker, stops it when asked, and tells how it ended."""

    def __init__(
        self,
        order: Order,
        session_rank: int,
        info: Mapping[str, Any],
        env: dict[str, str],
        server: Path,
        job_dir: Path,
        limits: Limits,
    ) -> None:
        self.job_dir = job_dir
        self.started_at: float | None = None
        self._order = order
        self._rank = session_rank
        self._host = info["host"]
        self._limits = limits
        self._asked_at = time.monotonic()
        self._ended_at: float | None = None
        self._stop_due: tuple[float, str, bool] | None = None
        self._stopped_because = ""
        self._stopped_at = float("inf")
        self._give_up_at = float("inf")
        self._oom_kills = oom_kill_counter()
        self._oom_before = self._oom_kills()
        request = {
            "entry": order.job.entry,
            "job_dir": str(job_dir),
            "log": str(job_dir / jobfolder.LOG_FILE),
            "cwd": os.getcwd(),
            "env": env,
            "sys_path": sys.path,
        }
        self._link = WorkerLink(server, request)
        try:
            jobfolder.create_job_folder(job_dir, order.job.payload, dict(info))
        except OSError as error:
            # A full disk ends this job on this rank; it must not end the supervisor.
            self._link.abandon(f"cannot make {job_dir}: {error.strerror}")

    @property
    def ended(self) -> bool:
        """Tells whether the worker is gone."""
        return self._link.ended

    @property
    def remark(self) -> str:
        """What is odd about the node server, e.g. why it spawns workers."""
        return self._link.remark

    def abandon(self, why: str) -> None:
        """Gives up waiting for a worker that has not started."""
        if self.started_at is None:
            self._link.abandon(why)

    def poll(self, wait_s: float) -> None:
        """Hears from the node server for at most `wait_s`; carries out a stop that is due."""
        now = time.monotonic()
        if self._stop_due and now >= self._stop_due[0]:
            self.stop(self._stop_due[1], self._stop_due[2])
        if self.started_at is None and now - self._asked_at > self._limits.preload_s:
            self._link.abandon(f"the node server started none within {self._limits.preload_s:g} s")
        if now > self._give_up_at:
            self._link.kill()
        self._link.poll(wait_s)
        if self.started_at is None and self._link.pid is not None:
            self.started_at = time.monotonic()
        if self.ended and self._ended_at is None:
            self._ended_at = time.monotonic()

    def stop_after(self, grace_s: float, why: str, dump: bool) -> None:
        """Plans a stop; the worker may still end by itself until then."""
        if self._stop_due is None:
            self._stop_due = (time.monotonic() + grace_s, why, dump)

    def stop(self, why: str, dump: bool) -> None:
        """Asks for the worker's end: stack dump, TERM, KILL."""
        self._stop_due = (float("inf"), why, dump)
        if self._stopped_because or self.ended:
            return
        self._stopped_because, self._stopped_at = why, time.time()
        patience = WorkerProcess.DUMP_S + WorkerProcess.KILL_AFTER_S + _STOP_SLACK_S
        self._give_up_at = time.monotonic() + patience
        self._link.stop(dump)

    def settle(self, attend: Callable[[], None]) -> None:
        """Waits a moment if somebody else asked the worker to end: the launcher may ask us next."""
        outside = self._link.signal in ASKED_TO_STOP or bool(self._link.failure)
        if self._stopped_because or not outside:
            return
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            attend()
            time.sleep(0.05)

    def close(self, limit_s: float) -> None:
        """Lets go of the worker; if it lives it is stopped, and its end awaited for `limit_s`."""
        deadline = time.monotonic() + limit_s
        if not self.ended:
            self.stop("the session ends", dump=False)
        while not self.ended and time.monotonic() < deadline:
            self.poll(0.1)
        self._link.close()

    def end(self) -> RankEnd:
        """Returns how the worker ended; call it once it has."""
        failure = jobfolder.read_failure(self.job_dir)
        if failure is not None and failure["failed_at"] > self._stopped_at:
            # An exception that came after our SIGTERM is our doing.
            failure = None
        facts = Exit(
            exit_code=self._link.exit_code,
            signal=self._link.signal,
            done=jobfolder.is_done(self.job_dir),
            failure=failure,
            oom_kills=self._oom_kills() - self._oom_before,
            stopped_because=self._stopped_because,
            never_started=self._link.failure if self.started_at is None and not self._stopped_because else "",
        )
        status, reason, note = judge_exit(facts)
        if self._link.failure and self.started_at is not None and status == "crashed":
            reason = self._link.failure
        ended_at = self._ended_at or time.monotonic()
        return RankEnd(
            rank=self._rank,
            host=self._host,
            exit_code=self._link.exit_code,
            signal=self._link.signal,
            status=status,
            reason=reason,
            phase=jobfolder.read_phase(self.job_dir),
            log_tail=read_tail(self.job_dir / jobfolder.LOG_FILE),
            wall_s=ended_at - (self.started_at or ended_at),
            failed_at=None if status in ("ok", "stopped") else (failure or {}).get("failed_at", time.time()),
            note=note,
        )


def read_tail(path: Path) -> str:
    """Returns the last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
