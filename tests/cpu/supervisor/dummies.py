"""Job functions for the supervisor's tests: each ends in one way, none imports anything heavy."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from bench.errors import UnsupportedCase
from bench.jobfolder import out_folder, read_job, set_phase


def _mine(job_dir: Path) -> tuple[dict, bool]:
    """Returns the job and whether this rank is the one that shall fail."""
    job = read_job(job_dir)
    return job, job["rank_info"]["rank"] == job.get("rank", 0)


def _wait_for_ever(job_dir: Path) -> None:
    set_phase(job_dir, "waiting for a peer")
    while True:
        time.sleep(0.05)


def succeed(job_dir: Path) -> None:
    """Writes files, one of them larger than a store's value, and its environment."""
    job, _ = _mine(job_dir)
    set_phase(job_dir, "writing")
    out = out_folder(job_dir)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "EXTRA")
    facts = {name: os.environ.get(name) for name in names}
    facts |= {"info": job["rank_info"], "word": job.get("word"), "pid": os.getpid(), "parent": os.getppid()}
    facts["launcher_variables"] = [name for name in os.environ if name.startswith(("OMPI_", "PMIX_"))]
    (out / "facts.json").write_text(json.dumps(facts))
    (out / "deep" / "er").mkdir(parents=True)
    (out / "deep" / "er" / "empty").touch()
    big = int(job.get("big", 0))
    if big:
        (out / "big.bin").write_bytes(bytes([facts["info"]["rank"]]) * big)
    print("hello from", facts["RANK"])


def join_store(job_dir: Path) -> None:
    """Meets the other workers in the job's store, as init_process_group would."""
    from torch.distributed import TCPStore

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False)
    store.set(f"rank{rank}", "here")
    store.wait([f"rank{other}" for other in range(world)])


def reduce_with_gloo(job_dir: Path) -> None:
    """Adds the ranks up over a process group."""
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    value = torch.tensor([torch.distributed.get_rank() + 1.0])
    torch.distributed.all_reduce(value)
    (out_folder(job_dir) / "sum").write_text(str(value.item()))
    torch.distributed.destroy_process_group()


def fail(job_dir: Path) -> None:
    """Fails on one rank, the others wait for it; `how` names the way."""
    job, fails = _mine(job_dir)
    if not fails:
        _wait_for_ever(job_dir)
    set_phase(job_dir, "about to fail")
    _WAYS[job["how"]]()


def _raise() -> None:
    raise ValueError("the learning rate is negative\nsecond line")


def _raise_unsupported() -> None:
    raise UnsupportedCase("pipeline of 3 stages does not divide 4 layers")


def _raise_memory() -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 1 byte")


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _leave_quietly() -> None:
    os._exit(0)


def _exit_early() -> None:
    sys.exit(0)


def _exit_17() -> None:
    os._exit(17)


_WAYS = {
    "raise": _raise,
    "unsupported": _raise_unsupported,
    "memory": _raise_memory,
    "kill": _kill_self,
    "segfault": _segfault,
    "leave": _leave_quietly,
    "sys_exit": _exit_early,
    "exit17": _exit_17,
}


def echo(job_dir: Path) -> None:
    """One rank dies, the other reports the broken connection faster than the death is noticed."""
    job, dies = _mine(job_dir)
    path = Path(job["socket"])
    if dies:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        _peer, _ = listener.accept()
        os.kill(os.getpid(), signal.SIGKILL)
    while not path.exists():
        time.sleep(0.01)
    with socket.socket(socket.AF_UNIX) as sock:
        while sock.connect_ex(str(path)):
            time.sleep(0.01)
        sock.recv(1)
    raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:4711")


def hang(job_dir: Path) -> None:
    """Ignores TERM on one rank while the others are done."""
    _, hangs = _mine(job_dir)
    if hangs:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _wait_for_ever(job_dir)


def spin_with_grandchildren(job_dir: Path) -> None:
    """Runs hot beside a grandchild in the group and one that left it; both names go to the log's folder."""
    set_phase(job_dir, "spinning")
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    near = subprocess.Popen(sleeper)
    far = subprocess.Popen(sleeper, start_new_session=True)
    (out_folder(job_dir) / "grandchildren").write_text(f"{near.pid} {far.pid}")
    while True:
        pass


def wait_for_ever(job_dir: Path) -> None:
    """Tells through `payload.ready` that it runs, then waits."""
    job, _ = _mine(job_dir)
    rank = job["rank_info"]["rank"]
    Path(job["ready"], f"rank{rank}").write_text(str(os.getpid()))
    _wait_for_ever(job_dir)
