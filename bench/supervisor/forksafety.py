"""May this process fork workers, or must it spawn them? A device context does not survive a fork."""

from __future__ import annotations

import glob
import os
import sys
import time
from pathlib import Path

from bench.supervisor.processes import thread_count

_CANARY_LIMIT_S = 120.0
_PRELOAD_ENVIRONMENT = {
    # Counting devices must not initialise CUDA in the process that forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Both libraries start a thread when they are loaded, which a forked child would lack.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def preload_environment(environ: dict[str, str]) -> dict[str, str]:
    """Returns the environment in which a node server imports its modules."""
    return {**environ, **{key: environ.get(key, value) for key, value in _PRELOAD_ENVIRONMENT.items()}}


def machine_has_gpus() -> bool:
    """Tells whether there are device files of NVIDIA or AMD GPUs."""
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/kfd") or os.path.exists("/dev/dxg")


def why_not_fork() -> str:
    """Returns why workers must be spawned, or an empty string when a fork is safe."""
    unsafe = _thread_reason() or _device_reason()
    if unsafe or not machine_has_gpus() or "torch" not in sys.modules:
        return unsafe
    return _canary_reason() or _thread_reason() or _device_reason()


def _thread_reason() -> str:
    count = thread_count()
    if count == 1:
        return ""
    names = sorted(_thread_name(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid())
    return f"the preloaded modules run {count - 1} thread(s): {', '.join(names)}"


def _thread_name(task: str) -> str:
    try:
        return Path(f"/proc/self/task/{task}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "?"


def _device_reason() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a preloaded module has initialised CUDA"
    return ""


def _canary_reason() -> str:
    """Lets a forked child use the first device: this fails if the parent has touched the driver."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch = sys.modules["torch"]
            if torch.cuda.device_count() > 0:
                torch.cuda.init()
                torch.zeros(1, device="cuda").add_(1).item()
            code = 0
        except BaseException as error:
            print(f"canary: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    deadline = time.monotonic() + _CANARY_LIMIT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"a forked child cannot use the GPU (canary ended with {code})"
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return f"a forked child could not use the GPU within {_CANARY_LIMIT_S:g} s"
