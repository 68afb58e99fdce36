"""What the kernel is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.supervisor import processes


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("memory.events", "low 0\noom 7\noom_kill 3\noom_group_kill 0\n", 3),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        ("memory.oom_control", "oom_kill_disable 0\n", 0),
    ],
)
def test_kill_counter_of_both_cgroup_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, count: int
) -> None:
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(processes, "_counter_files", lambda: [tmp_path / name, tmp_path / "missing"])
    assert processes.oom_kill_counter()() == count


def test_process_key_tells_the_living_from_zombies_and_namesakes() -> None:
    assert processes.own_key().alive()
    assert not processes.ProcessKey(os.getpid(), "1").alive()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    key = processes.process_key(child.pid)
    assert key is not None and key.alive() and child.pid in processes.children_of(os.getpid())
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not key.alive()
    child.wait()
    assert not key.alive() and processes.process_key(child.pid) is None
