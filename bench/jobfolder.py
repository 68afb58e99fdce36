"""The files through which a supervisor and the worker of one job talk.

A job folder holds, on every rank:

    job.json       what to do: the job's payload plus `rank_info` (supervisor writes, worker reads)
    phase          one line: where the worker stands (worker writes, supervisor reads)
    outcome.json   why the worker failed (worker writes, supervisor reads)
    done           exists once the job's function has returned (worker writes)
    worker.log     stdout and stderr of the worker
    out/           whatever the worker puts here reaches rank 0

Nothing here needs torch, so that both sides may import it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench.errors import RecordError
from bench.records.folder import write_atomic

JOB_FILE = "job.json"
PHASE_FILE = "phase"
OUTCOME_FILE = "outcome.json"
DONE_FILE = "done"
LOG_FILE = "worker.log"
OUT_FOLDER = "out"

FAILURE_STATUSES = ("oom", "timeout", "crashed", "unsupported")
"""What a worker may say about its own failure; `ok` is said by the `done` file alone."""

_PHASE_LIMIT = 200


def _write(path: Path, text: str) -> None:
    # Lives for one job: a reader must never see a part, but nothing need survive a power cut.
    write_atomic(path, text, durable=False)


def create_job_folder(job_dir: Path, payload: dict[str, Any], rank_info: dict[str, Any]) -> None:
    """Makes the folder with its `out/` and writes `job.json` (supervisor's side)."""
    if "rank_info" in payload:
        raise RecordError("job payload has an entry 'rank_info'; that name is taken by the supervisor")
    (job_dir / OUT_FOLDER).mkdir(parents=True)
    job = {**payload, "rank_info": rank_info}
    _write(job_dir / JOB_FILE, json.dumps(job, allow_nan=False))


def read_job(job_dir: Path) -> dict[str, Any]:
    """Returns the job's payload with the extra entry `rank_info`.

    `rank_info` holds rank, world_size, local_rank, local_world_size, node_rank and node_count (all of
    this job's processes), host, launcher, job (its name) and session.
    """
    path = Path(job_dir) / JOB_FILE
    try:
        job = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not a readable job file ({error})") from error
    if not isinstance(job, dict):
        raise RecordError(f"{path}: expected a JSON object, found {type(job).__name__}")
    return job


def out_folder(job_dir: Path) -> Path:
    """Returns the folder whose files reach rank 0."""
    return Path(job_dir) / OUT_FOLDER


def set_phase(job_dir: Path, text: str) -> None:
    """Says where the worker stands, for the progress line and for the reason of a timeout."""
    line = " ".join(text.split())[:_PHASE_LIMIT]
    _write(Path(job_dir) / PHASE_FILE, line + "\n")


def read_phase(job_dir: Path) -> str:
    """Returns the worker's last phase, or an empty string before it set one."""
    try:
        return (Path(job_dir) / PHASE_FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def write_failure(job_dir: Path, status: str, reason: str, traceback: str = "") -> None:
    """Says how the worker failed; the process should then exit with a code other than 0.

    Args:
        job_dir: The job's folder.
        status: One of `FAILURE_STATUSES`.
        reason: One sentence for the results' table.
        traceback: Python's traceback, for the log reader.

    Raises:
        ValueError: `status` is none of `FAILURE_STATUSES`.
    """
    if status not in FAILURE_STATUSES:
        raise ValueError(f"status {status!r}: expected one of {', '.join(FAILURE_STATUSES)}")
    outcome = {
        "status": status,
        "reason": " ".join(reason.split()),
        "phase": read_phase(job_dir),
        "traceback": traceback,
        # Ranks of one host share this clock; it orders failures that come within the same poll.
        "failed_at": time.time(),
    }
    _write(Path(job_dir) / OUTCOME_FILE, json.dumps(outcome, allow_nan=False))


def read_failure(job_dir: Path) -> dict[str, Any] | None:
    """Returns what `write_failure` wrote, or None."""
    try:
        outcome = json.loads((Path(job_dir) / OUTCOME_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(outcome, dict) and outcome.get("status") in FAILURE_STATUSES
    return outcome if known else None


def mark_done(job_dir: Path) -> None:
    """Says that the job's function has returned: only then is exit code 0 believed."""
    _write(Path(job_dir) / DONE_FILE, "done\n")


def is_done(job_dir: Path) -> bool:
    """Tells whether the job's function has returned."""
    return (Path(job_dir) / DONE_FILE).exists()
