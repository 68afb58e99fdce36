"""Real launches on CPU ranks. Heavy libraries are imported once, by a node server that all launches share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from bench.records.folder import read_cases, read_run
from bench.records.schema import CaseRecord, RunRecord
from bench.spec.paths import ROOT

# Before torch is imported: more threads than free cores make tiny operators many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
pytest.register_assert_rewrite("tests.cpu.layout_checks")
LAUNCH_TIMEOUT_S = 420
PRELOAD = (
    "torch", "deepspeed", "transformers", "peft", "datasets", "pandas", "bench.worker.main",
    "bench.worker.engines.zero", "bench.worker.verify",
)  # fmt: skip
TINY = {
    "model": "bench/assets/tiny", "data": "bench/assets/tiny/task.jsonl", "precision": "fp32", "seq_len": 64,
    "learning_rate": 1e-3, "timeout_s": 200,
    # Nothing of a tiny model would be sharded or reduced in parts with the defaults.
    "ds_overrides": {
        "zero_optimization.stage3_param_persistence_threshold": 0, "zero_optimization.reduce_bucket_size": 200_000,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """One finished launch."""

    code: int
    output: str
    folder: Path

    @property
    def run(self) -> RunRecord:
        return read_run(self.folder)

    @property
    def cases(self) -> dict[str, CaseRecord]:
        return {record.case.id: record for record in read_cases(self.folder)}


@pytest.fixture(scope="session")
def node_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("server") / "socket"
    server = [sys.executable, "-m", "bench.supervisor.node_server"]
    command = [*server, "--socket", str(path), "--preload", ",".join(PRELOAD)]
    log = path.with_suffix(".log").open("w")
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    deadline = time.monotonic() + 180
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, path.with_suffix(".log").read_text()
        time.sleep(0.1)
    yield path
    process.terminate()
    process.wait(30)


def write_suite(path: Path, cases: list[dict], **defaults: object) -> Path:
    """Write a suite of cases over the tiny model."""
    with path.open("w", encoding="utf-8") as file:
        YAML().dump({"description": "test", "defaults": {**TINY, **defaults}, "cases": cases}, file)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environment(rank: int, world_size: int, port: int, server: Path | None) -> dict[str, str]:
    """What a launcher gives to one rank."""
    own = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return {**os.environ, **own, **({"FTBENCH_NODE_SERVER": str(server)} if server else {})}


def start(
    world_size: int, arguments: list[str], server: Path | None, folder: Path, script: str = "bench/run.py"
) -> list[subprocess.Popen]:
    """Start one process per rank; output goes to files in `folder`."""
    port = free_port()
    processes = []
    for rank in range(world_size):
        log = (folder / f"rank{rank}.out").open("w")
        command = [sys.executable, script, *arguments]
        environment = rank_environment(rank, world_size, port, server)
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    return processes


def finish(processes: list[subprocess.Popen], folder: Path, out: Path) -> Done:
    """Wait for all ranks within the limit."""
    deadline = time.monotonic() + LAUNCH_TIMEOUT_S
    try:
        codes = [process.wait(max(1.0, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
    output = "\n".join((folder / f"rank{rank}.out").read_text() for rank in range(len(processes)))
    return Done(codes[0], output, out)


@pytest.fixture(scope="session")
def launch(node_server: Path, tmp_path_factory: pytest.TempPathFactory):
    """Run bench/run.py on some ranks and wait for it."""

    def run(world_size: int, suite: Path | str, *arguments: str, out: Path | None = None) -> Done:
        folder = tmp_path_factory.mktemp("launch")
        out = out or folder / "results"
        options = ["--suite", str(suite), "--out", str(out), *arguments]
        return finish(start(world_size, options, node_server, folder), folder, out)

    return run


@pytest.fixture(scope="session")
def run_jobs(node_server: Path, tmp_path_factory: pytest.TempPathFactory):
    """Run functions on fresh workers of some ranks, without bench/run.py; returns how each job ended, by name."""

    def run(world_size: int, jobs: list[dict]) -> dict[str, dict]:
        folder = tmp_path_factory.mktemp("jobs")
        (folder / "jobs.json").write_text(json.dumps(jobs))
        processes = start(world_size, [str(folder)], node_server, folder, "tests/cpu/supervisor/drive.py")
        done = finish(processes, folder, folder)
        assert done.code == 0, done.output
        ends = [json.loads(line) for line in (folder / "ends.jsonl").read_text().splitlines()]
        return {end["name"]: end for end in ends if "name" in end}

    return run
