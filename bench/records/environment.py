"""What a run was made with: versions, device, driver, topology, commit. Needs neither torch nor a context."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from bench.errors import RecordError
from bench.records.schema import Environment
from bench.spec.paths import ROOT

PACKAGES = (
    "torch", "deepspeed", "transformers", "peft", "datasets", "tokenizers", "safetensors", "accelerate",
    "flash-attn", "bitsandbytes", "numpy", "pandas", "mpi4py", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton",
)  # fmt: skip
_VARIABLES = re.compile(r"(NCCL|GLOO|OMP|MKL|KMP|PYTORCH|TORCH|CUDA|DS|HF|TOKENIZERS|UCX|OPENBLAS)_[A-Z0-9_]+")
_PRIVATE = re.compile(r"TOKEN(?!IZERS)|KEY|SECRET|PASSWORD|PATH|DIR|HOME|CACHE")
_TOOL_TIMEOUT_S = 20
_OTHER_TIMEOUT_S = 120


def environment(threads_per_rank: int | None) -> Environment:
    """Describe this node.

    Args:
        threads_per_rank: intra-operator threads given to each worker.
    """
    names = query_gpus("name")
    memory = query_gpus("memory.total")
    return Environment(
        versions={"ftbench": _version("ftbench"), "python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
        device=names[0] if names else cpu_name(),
        device_kind="cuda" if names else "cpu",
        devices_per_node=len(names),
        device_memory_bytes=int(float(memory[0]) * 2**20) if memory else None,
        driver=(query_gpus("driver_version") or [None])[0],
        topology=_run("nvidia-smi", "topo", "-m") if names else None,
        cpu=cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)),
        host_memory_bytes=psutil.virtual_memory().total,
        threads_per_rank=threads_per_rank,
        platform=platform.platform(),
        commit=_git("rev-parse", "HEAD"),
        dirty=_dirty(),
        variables={k: v for k, v in sorted(os.environ.items()) if _VARIABLES.fullmatch(k) and not _PRIVATE.search(k)},
    )


def interpreter_of(folder: Path) -> Path:
    """The interpreter of a virtual environment.

    Raises:
        RecordError: there is none.
    """
    python = folder / "bin" / "python"
    if not python.is_file():
        raise RecordError(f"--against {folder}: no {python}; give the folder of a virtual environment")
    return python.absolute()  # not resolved: the link's place is what makes it the environment's


def environment_of(python: Path, threads_per_rank: int) -> Environment:
    """Describe this node as another environment sees it.

    Args:
        python: its interpreter.
        threads_per_rank: intra-operator threads given to each worker.

    Raises:
        RecordError: that environment cannot import what this project needs, with its message.
    """
    code = "from bench.records.environment import environment as e; "
    code += f"print(e({threads_per_rank}).model_dump_json())"
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [str(python), "-c", code], env=paths, capture_output=True, text=True, timeout=_OTHER_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise RecordError(f"--against: {python} did not answer within {_OTHER_TIMEOUT_S} s") from None
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise RecordError(f"--against: {python} cannot run this project: {lines[-1]}") from None
    return Environment.model_validate_json(done.stdout)


def query_gpus(field: str) -> list[str]:
    """One field of every NVIDIA GPU as the driver gives it; empty where there is none."""
    out = _run("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits")
    return [line.strip() for line in out.splitlines() if line.strip()] if out else []


def cpu_name() -> str:
    """The processor's model name."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dirty() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _git(*args: str) -> str | None:
    return _run("git", "-C", str(ROOT), *args)


def _run(*command: str) -> str | None:
    """Output of a tool, or None where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.strip()
