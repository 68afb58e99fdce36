"""DeepSpeed's compiled operators, built once per node before any rank needs them."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from bench import jobfolder
from bench.errors import UnsupportedCase


def build(job_dir: Path) -> None:
    """Worker entry: build what job.json names under `operators`, in our own extensions folder.

    A process killed during a build leaves a lock on which every later one would wait for ever; while we
    hold our own lock no other build of ours is alive, so such a lock is stale.

    Raises:
        UnsupportedCase: another build holds the folder for too long, or an operator cannot be built.
    """
    from deepspeed.ops.op_builder import CPUAdamBuilder

    builders = {"cpu_adam": CPUAdamBuilder}
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    job = jobfolder.read_job(job_dir)
    try:
        with FileLock(folder / "ftbench.lock", timeout=job["lock_timeout_s"]):
            for stale in folder.glob("*/lock"):
                stale.unlink()
            for name in job["operators"]:
                jobfolder.set_phase(job_dir, f"building {name}")
                builders[name]().load(verbose=False)
    except Timeout:
        raise UnsupportedCase(f"another process has been building operators in {folder} for too long") from None
    except RuntimeError as error:
        raise UnsupportedCase(f"DeepSpeed's {name} cannot be built: {str(error).splitlines()[0]}") from error
