"""What a session is asked to do and what it answers."""

from __future__ import annotations

import json
import re
import signal as signals
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import LaunchError

RANK_CHOICES = ("all", "rank0", "one_per_node")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class SessionInterrupted(Exception):
    """The session was asked to stop (Ctrl-C, SIGTERM, the launcher died); the workers are being killed.

    Write down what is finished, leave the `with` block and exit with `exit_code`.
    """

    def __init__(self, signum: int, why: str) -> None:
        super().__init__(why)
        self.signum = signum
        self.exit_code = 128 + signum


class SessionLost(LaunchError):
    """A supervisor or its node is gone, so that the ranks cannot run another job together."""


@dataclass(frozen=True)
class Limits:
    """How long the session waits for what, and how much it moves."""

    rendezvous_s: float = 300.0
    """From the start of a supervisor until all ranks have met."""
    preload_s: float = 600.0
    """From a job's publication until the node server has started its worker; imports count here."""
    lost_s: float = 20.0
    """A supervisor that has been silent for so long is lost."""
    grace_s: float = 1.0
    """After the first failure the other ranks have so long to fail by themselves."""
    close_s: float = 10.0
    """The orderly end waits so long for the other supervisors and for dying workers."""
    ship_idle_s: float = 60.0
    """Moving files to rank 0 ends after so long without a new piece."""
    ship_bytes: int = 512 * 2**20
    """At most so much is moved to rank 0 from one rank and job; smaller files go first."""
    deadman_s: float = 90.0
    """A supervisor whose main loop stands still for so long is killed by its own alarm."""


@dataclass(frozen=True)
class Job:
    """One function call on fresh worker processes."""

    name: str
    """A safe folder name, e.g. "lora-z3.r1"."""
    entry: str
    """"package.module:function", called as function(job_dir) in the worker."""
    payload: dict[str, Any]
    """JSON, written to <job_dir>/job.json on each rank together with `rank_info`."""
    timeout_s: float
    """Counted from the start of the leader's worker."""
    ranks: str = "all"
    """"all", "rank0" or "one_per_node" (local rank 0 of each node)."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for this job's workers, on top of their supervisor's own."""

    def __post_init__(self) -> None:
        if not _SAFE_NAME.fullmatch(self.name):
            raise ValueError(f"job name {self.name!r}: expected letters, digits, '.', '_' and '-', at most 120")
        if not _ENTRY.fullmatch(self.entry):
            raise ValueError(f"job {self.name}: entry {self.entry!r}: expected 'package.module:function'")
        if self.ranks not in RANK_CHOICES:
            raise ValueError(f"job {self.name}: ranks {self.ranks!r}: expected one of {', '.join(RANK_CHOICES)}")
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"job {self.name}: timeout_s {self.timeout_s!r}: expected a positive number of seconds")
        json.dumps(self.payload, allow_nan=False)


@dataclass(frozen=True)
class RankEnd:
    """How the worker of one rank ended."""

    rank: int
    """Rank in the session, also for jobs that do not run on all ranks."""
    host: str
    """Host name of the rank's supervisor."""
    exit_code: int | None
    """Of the worker; None when a signal ended it or it never started."""
    signal: int | None
    """The signal that ended the worker, or None."""
    status: str
    """ok, oom, timeout, crashed, unsupported, or `stopped`: killed because of another rank or the time limit."""
    reason: str
    """One sentence; empty when ok."""
    phase: str
    """Last phase the worker set."""
    log_tail: str
    """Last lines of the worker's log."""
    wall_s: float
    """Seconds from the worker's start to its end."""
    failed_at: float | None = None
    """Unix time of the failure on the rank's own clock; None when ok or stopped."""
    missing_files: tuple[str, ...] = ()
    """Files that did not reach rank 0, each with the reason."""
    note: str = ""
    """What is odd about an end that is not a failure, e.g. a crash after the function had returned."""

    @property
    def signal_name(self) -> str:
        """`SIGKILL` and the like, or an empty string."""
        return name_signal(self.signal) if self.signal else ""

    def to_json(self) -> str:
        """Returns the record as one JSON object."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RankEnd:
        """Reads what `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "missing_files": tuple(fields["missing_files"])})


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, with what it left behind."""

    name: str
    """The job's name."""
    status: str
    """ok, oom, timeout, crashed or unsupported."""
    reason: str
    """One sentence that names the rank to blame; empty when ok."""
    failing_rank: int | None
    """The rank that failed first and of its own accord; None when ok or when no rank is to blame."""
    log_tail: str
    """Last lines of the failing rank's log (rank 0's when none is to blame)."""
    ranks: tuple[RankEnd, ...]
    """One entry per rank of the job, in order."""
    files: Path
    """Folder with files/rank<r>/…: each rank's out/ and worker.log. Gone when the session ends: move what you keep."""
    wall_s: float = 0.0
    """Seconds from publication of the job until its files were collected."""


def name_signal(signum: int) -> str:
    """Returns `SIGKILL` for 9 and so on; `signal 64` when it has no name."""
    try:
        return signals.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
