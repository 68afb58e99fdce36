"""What a job's function raises becomes a status, without torch being loaded."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from bench import jobfolder
from bench.errors import RecordError, UnsupportedCase
from bench.supervisor.worker_main import classify_error


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("bad\nsecond"), "crashed", "ValueError: bad"),
        (KeyError(), "crashed", "KeyError"),
        (SystemExit(3), "crashed", "sys.exit(3)"),
        (KeyboardInterrupt(), "crashed", "KeyboardInterrupt"),
        (UnsupportedCase("no pipeline here"), "unsupported", "no pipeline here"),
        (MemoryError(), "oom", "MemoryError"),
        (OutOfMemoryError("tried 2 GiB"), "oom", "OutOfMemoryError: tried 2 GiB"),
        (RuntimeError("CUDA error: out of memory"), "oom", "CUDA error"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom", "DefaultCPUAllocator"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom", "Cannot allocate memory"),
        (_caused(RuntimeError("while building"), MemoryError()), "oom", "while building"),
        (ValueError("the words out of memory in data"), "crashed", "ValueError"),
    ],
)
def test_errors_become_statuses(error: BaseException, status: str, reason: str) -> None:
    found = classify_error(error)
    assert found[0] == status and reason in found[1] and "\n" not in found[1]


def test_job_folder_carries_payload_phase_and_failure(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    jobfolder.create_job_folder(folder, {"case": {"id": "ü"}}, {"rank": 1})
    assert jobfolder.read_job(folder) == {"case": {"id": "ü"}, "rank_info": {"rank": 1}}
    assert jobfolder.out_folder(folder).is_dir()
    assert jobfolder.read_phase(folder) == "" and jobfolder.read_failure(folder) is None
    jobfolder.set_phase(folder, "step\n3 of 9 " + "x" * 500)
    assert jobfolder.read_phase(folder).startswith("step 3 of 9 x") and len(jobfolder.read_phase(folder)) <= 200
    jobfolder.write_failure(folder, "oom", "two\nlines")
    failure = jobfolder.read_failure(folder)
    assert failure["reason"] == "two lines" and failure["phase"].startswith("step 3")
    assert not jobfolder.is_done(folder)
    jobfolder.mark_done(folder)
    assert jobfolder.is_done(folder)
    assert not list(folder.glob(".*"))


def test_job_folder_refuses_nonsense(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="rank_info"):
        jobfolder.create_job_folder(tmp_path / "a", {"rank_info": 1}, {})
    with pytest.raises(ValueError, match="status 'ok'"):
        jobfolder.write_failure(tmp_path, "ok", "")
    (tmp_path / "job.json").write_text(json.dumps([1]))
    with pytest.raises(RecordError, match="expected a JSON object"):
        jobfolder.read_job(tmp_path)
    (tmp_path / "outcome.json").write_text('{"status": "fine"}')
    assert jobfolder.read_failure(tmp_path) is None
