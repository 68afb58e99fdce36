"""The worker's side: runs one job's function in this process and writes down how it ended.

Reached in two ways: called in a process that the node server has forked, or started afresh as
`python -m bench.supervisor.worker_main REQUEST.json` where a fork would not be safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from bench import jobfolder

_PR_SET_PDEATHSIG = 1
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can(no|')t allocate memory|std::bad_alloc|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Asks the kernel for `signum` when the parent dies, and exits if that has already happened."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_worker(request: dict[str, Any]) -> int:
    """Runs the request's function; returns the exit code for this process.

    Args:
        request: entry, job_dir and sys_path. Environment, folder and streams are already in place.
    """
    job_dir = Path(request["job_dir"])
    faulthandler.enable()
    # The supervisor asks with SIGUSR1 where a hung worker stands before it kills it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Where memory runs out, the kernel shall take the worker, not its supervisor or the node server.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    if request["sys_path"] is not None:  # another environment keeps its own
        sys.path[:] = request["sys_path"]
    sys.argv = [request["entry"], str(job_dir)]
    try:
        _limit_threads()
        module, _, function = request["entry"].partition(":")
        getattr(importlib.import_module(module), function)(job_dir)
    except BaseException as error:
        status, reason = classify_error(error)
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        jobfolder.write_failure(job_dir, status, reason, text)
        return 1
    jobfolder.mark_done(job_dir)
    return 0


def classify_error(error: BaseException) -> tuple[str, str]:
    """Returns (status, one-line reason) for what a job's function raised."""
    first_line = (str(error).strip().splitlines() or [""])[0][:500]
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    if isinstance(error, SystemExit):
        return "crashed", f"the job's function left early by sys.exit({error.code!r})"
    # By name: neither torch nor the suite's errors need to be loaded for this.
    if "UnsupportedCase" in _class_names(error):
        return "unsupported", first_line or reason
    cause: BaseException | None = error
    while cause is not None:
        if _is_out_of_memory(cause):
            return "oom", reason
        cause = cause.__cause__
    return "crashed", reason


def _class_names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemoryError" in _class_names(error):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))


def _limit_threads() -> None:
    """Applies OMP_NUM_THREADS to a torch that was loaded before this process had its environment."""
    torch = sys.modules.get("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if torch is not None and threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))


def leave(code: int) -> None:
    """Ends the process at once: results are on disk, and exit handlers of libraries may hang."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main() -> None:
    """Entry point of a spawned worker."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    die_with_parent(request["parent"])
    leave(run_worker(request))


if __name__ == "__main__":
    main()
