"""Launches that are taken down from outside: everything dies, and the leader keeps what is finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from launching import BINARIES, DRIVE, Launched, free_port, job, wait_for

from bench.supervisor.processes import process_key

_QUICK = json.dumps({"grace_s": 0.3, "close_s": 5})


def _waiting_pair(launched: Callable[..., Launched], **limits: float) -> tuple[Launched, list[int]]:
    launch = launched([], DRIVE_LIMITS=json.dumps({**json.loads(_QUICK), **limits}))
    jobs = [
        job("first"),
        job("interrupted", "wait_for_ever", ready=str(launch.folder / "ready")),
        job("alone", ranks="rank0"),
        job("after"),
    ]
    (launch.folder / "jobs.json").write_text(json.dumps(jobs))
    launch.start_ranks()
    return launch, launch.await_workers()


def _assert_dead(pids: list[int]) -> None:
    def dead() -> bool:
        keys = [process_key(pid) for pid in pids]
        return not any(key and key.alive() for key in keys)

    wait_for(dead, 10, f"death of workers {pids}")


@pytest.mark.parametrize(
    ("rank", "signum", "code"), [(0, signal.SIGINT, 130), (0, signal.SIGTERM, 143), (1, signal.SIGTERM, 143)]
)
def test_signal_to_one_supervisor_ends_all_and_keeps_what_is_finished(
    launched: Callable[..., Launched], rank: int, signum: int, code: int
) -> None:
    launch, workers = _waiting_pair(launched)
    os.kill(launch.supervisors()[rank], signum)
    codes = launch.wait(15)
    assert codes[rank] == code and codes[0] == code
    assert launch.closed().startswith("interrupted")
    assert list(launch.job_ends()) == ["first"]
    _assert_dead(workers)
    launch.assert_nothing_left()
    assert list((launch.folder / "scratch").iterdir()) == []


def test_killed_follower_ends_the_job_and_the_session_goes_on_without_it(launched: Callable[..., Launched]) -> None:
    launch, workers = _waiting_pair(launched)
    os.kill(launch.supervisors()[1], signal.SIGKILL)
    launch.wait(20)
    ends = launch.job_ends()
    assert (ends["interrupted"]["status"], ends["interrupted"]["failing_rank"]) == ("crashed", 1)
    assert "rank lost: its supervisor (pid" in ends["interrupted"]["reason"]
    assert ends["interrupted"]["ranks"][1]["missing_files"]
    assert ends["alone"]["status"] == "ok" and "after" not in ends
    assert "job after needs rank 1, which is gone" in launch.output()
    _assert_dead(workers)
    launch.assert_nothing_left()


def test_silent_supervisor_is_lost(launched: Callable[..., Launched]) -> None:
    launch, _ = _waiting_pair(launched, lost_s=2)
    follower = launch.supervisors()[1]
    os.kill(follower, signal.SIGSTOP)
    wait_for(lambda: "alone" in launch.job_ends(), 20, "end of the job with a silent rank")
    assert "silent for" in launch.job_ends()["interrupted"]["reason"]
    os.kill(follower, signal.SIGCONT)
    launch.wait(20)
    launch.assert_nothing_left()


def test_killed_leader_takes_everything_along(launched: Callable[..., Launched]) -> None:
    launch, workers = _waiting_pair(launched)
    os.kill(launch.supervisors()[0], signal.SIGKILL)
    codes = launch.wait(20)
    assert codes[0] == -signal.SIGKILL and codes[1] != 0
    _assert_dead(workers)
    launch.assert_nothing_left()


def test_killed_node_server_ends_the_job_and_is_replaced(launched: Callable[..., Launched]) -> None:
    launch, workers = _waiting_pair(launched)
    server = psutil.Process(workers[0]).parent()
    assert server is not None and "bench.supervisor.node_server" in server.cmdline()
    server.kill()
    assert launch.wait(30) == [0, 0]
    ends = launch.job_ends()
    assert ends["interrupted"]["status"] == "crashed" and "node server died" in ends["interrupted"]["reason"]
    assert ends["after"]["status"] == "ok"
    _assert_dead(workers)
    launch.assert_nothing_left()


def _start_deepspeed(launch: Launched, hostfile: Path) -> None:
    command = [str(BINARIES / "deepspeed"), "--hostfile", str(hostfile), "--no_ssh_check"]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(free_port()), str(DRIVE), str(launch.folder)]
    launch.start(command)


@pytest.mark.launcher("deepspeed")
@pytest.mark.parametrize(
    ("target", "signum"),
    [
        ("runner", signal.SIGINT),
        ("runner", signal.SIGKILL),
        pytest.param("runner", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("node", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_launcher_taken_down(launched: Callable[..., Launched], tmp_path: Path, target: str, signum: int) -> None:
    launch = launched([], DRIVE_LIMITS=_QUICK)
    jobs = [job("first"), job("interrupted", "wait_for_ever", ready=str(launch.folder / "ready"))]
    (launch.folder / "jobs.json").write_text(json.dumps(jobs))
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=2\n")
    _start_deepspeed(launch, hostfile)
    workers = launch.await_workers()
    parent = psutil.Process(launch.supervisors()[0]).parent()
    os.kill(launch.processes[0].pid if target == "runner" else parent.pid, signum)
    launch.wait(20)
    wait_for(lambda: launch.ends() and "closed" in launch.ends()[-1], 10, f"the leader's last word: {launch.output()}")
    assert launch.closed().startswith("interrupted")
    assert list(launch.job_ends()) == ["first"]
    _assert_dead(workers)
    launch.assert_nothing_left()


def test_dead_mans_switch_ends_a_supervisor_that_stands_still() -> None:
    code = (
        "import threading; from bench.supervisor.interrupts import Interrupts\n"
        "stop = Interrupts(deadman_s=0.2); stop.install(watch_launcher=False); stop.check()\n"
        "lock = threading.Lock(); lock.acquire(); lock.acquire()\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, timeout=20)
    assert done.returncode == -signal.SIGALRM
    assert b"most recent call first" in done.stderr
