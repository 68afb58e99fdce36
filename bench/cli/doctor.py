"""`python -m bench doctor`: what would stop a run on this node, found before the run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

from bench.errors import BenchError, SpecError
from bench.records.environment import query_gpus
from bench.spec.hostfile import parse_hostfile
from bench.spec.paths import ROOT
from bench.units import gib

Verdict = Literal["ok", "note", "bad"]
Finding = tuple[Verdict, str]
FREE_BYTES = 2 * 2**30
"""Enough for results and the checkpoints of small models."""
KNOWN_GOOD = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.24.", "peft": "0.21."}


@click.command()
@click.option("--hostfile", type=click.Path(path_type=Path), help="Check this hostfile too, strictly.")
@click.option("--port", type=int, default=29500, show_default=True, help="Port the launch will use.")
def command(hostfile: Path | None, port: int) -> None:
    """Check packages, devices, hostfile, ssh, port, disk and stale locks of this node."""
    findings = [
        *_packages(), *_devices(), *(_hosts(hostfile) if hostfile else ()), *_ssh(), *_port(port), *_disk(), *_locks(),
    ]  # fmt: skip
    for verdict, text in findings:
        click.echo(f"{verdict:>4}  {text}")
    bad = [text for verdict, text in findings if verdict == "bad"]
    if bad:
        raise BenchError(f"{len(bad)} problem(s) would stop a run; the first: {bad[0]}")


def _packages() -> Iterator[Finding]:
    for name, known in KNOWN_GOOD.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield "bad", f"{name} is not installed in {sys.prefix}; run ./run_bench.sh setup"
            continue
        tested = version.startswith(known)
        yield ("ok" if tested else "note"), f"{name} {version}" + ("" if tested else f" (tested with {known}x)")


def _devices() -> Iterator[Finding]:
    names = query_gpus("name")
    if names:
        yield "ok", f"{len(names)} GPU(s): {names[0]}, driver {query_gpus('driver_version')[0]}"
    else:
        yield "note", f"no NVIDIA GPU: CPU suites only; {len(os.sched_getaffinity(0))} cores"


def _hosts(hostfile: Path) -> Iterator[Finding]:
    try:
        hosts = parse_hostfile(hostfile)
    except SpecError as error:
        yield "bad", str(error)
        return
    yield "ok", f"hostfile {hostfile}: " + ", ".join(f"{host.name} × {host.slots}" for host in hosts)
    gpus = len(query_gpus("name"))
    for host in hosts:
        if gpus and host.name in ("localhost", "127.0.0.1", socket.gethostname()) and host.slots > gpus:
            yield "bad", f"{hostfile}:{host.line}: {host.slots} slots, but this node has {gpus} GPU(s)"


def _ssh() -> Iterator[Finding]:
    """The deepspeed launcher runs `ssh HOST hostname` for any hostfile unless it is told not to."""
    if shutil.which("ssh"):
        command = ["ssh", "-o", "PasswordAuthentication=no", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
                   "-o", "StrictHostKeyChecking=yes", "localhost", "true"]  # fmt: skip
        try:
            works = subprocess.run(command, capture_output=True, timeout=15, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            works = False
    else:
        works = False
    hint = "on one node add: --no_ssh_check --master_addr 127.0.0.1 (run_bench.sh does)"
    yield ("ok", "ssh to localhost works without a password") if works else ("note", f"no ssh to localhost: {hint}")


def _port(port: int) -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            yield "bad", f"port {port} is taken; end what holds it, or launch with --master_port"
            return
    yield "ok", f"port {port} is free"


def _disk() -> Iterator[Finding]:
    for path, what in ((ROOT, "results and checkpoints"), (Path("/dev/shm"), "shared memory")):
        if path.exists():
            free = shutil.disk_usage(path).free
            enough = free > FREE_BYTES or path != ROOT
            yield ("ok" if enough else "bad"), f"{gib(free)} free for {what} ({path})"


def _locks() -> Iterator[Finding]:
    """A build that was killed leaves a lock on which DeepSpeed waits for ever; ours are removed before building."""
    shared = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path.home() / ".cache" / "torch_extensions"))
    for lock in shared.glob("**/lock"):
        yield "note", f"stale or running build: {lock}; the suite builds elsewhere and is not stopped by it"
