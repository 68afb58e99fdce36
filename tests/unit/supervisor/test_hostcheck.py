"""The hostfile that deepspeed was given, against the ranks that came."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from bench.errors import LaunchError
from bench.supervisor.hostcheck import DeepspeedCommand, NodeRanks, check_hostfile, read_commands
from bench.supervisor.launch import Launch

_PYTHON, _DEEPSPEED = "/opt/venv/bin/python3", "/opt/venv/bin/deepspeed"


def _launch(world_size: int, launcher: str = "deepspeed") -> Launch:
    return Launch(0, world_size, 0, world_size, 0, "127.0.0.1", 29500, launcher)


def _check(path: Path, hosts: list[NodeRanks], **command: object) -> str:
    world_size = sum(node.ranks for node in hosts)
    return check_hostfile(_launch(world_size), hosts, DeepspeedCommand(str(path), **command))


def _hostfile(folder: Path, text: str) -> Path:
    path = folder / "hosts"
    path.write_text(text)
    return path


def _world(**hosts: list[int]) -> str:
    return "--world_info=" + base64.urlsafe_b64encode(json.dumps(hosts).encode()).decode()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--hostfile", "hosts"], "/srv/hosts"),
        (["--hostfile=/etc/hosts8"], "/etc/hosts8"),
        (["-H", "hosts"], "/srv/hosts"),
        (["-Hhosts"], "/srv/hosts"),
        (["--hostf", "hosts"], "/srv/hosts"),
        (["--no_ssh_check", "--master_addr", "127.0.0.1", "--hostfile", "hosts"], "/srv/hosts"),
        (["--master_port", "1"], None),
        (["run.py", "--hostfile", "the-scripts-own"], None),
    ],
)
def test_hostfile_is_read_from_the_launchers_own_options(words: list[str], expected: str | None) -> None:
    command = read_commands([([_PYTHON, _DEEPSPEED, *words, "run.py"], "/srv")])
    assert command is not None and command.hostfile == expected


def test_filters_and_resolved_world_are_read() -> None:
    lines = [
        ([_PYTHON, "-u", "-m", "deepspeed.launcher.launch", _world(a=[0, 1]), "run.py"], "/srv"),
        ([_PYTHON, _DEEPSPEED, "-H", "hosts", "--num_gpus", "2", "run.py"], "/srv"),
    ]
    command = read_commands(lines)
    assert command == DeepspeedCommand("/srv/hosts", filtered=True, world={"a": [0, 1]})


def test_other_launchers_have_no_hostfile() -> None:
    assert read_commands([([_PYTHON, "/opt/venv/bin/torchrun", "--nproc-per-node", "2"], "/")]) is None
    assert "launched by torchrun" in check_hostfile(_launch(2, "torchrun"), [NodeRanks("a", 2)])


def test_ranks_as_named_pass(tmp_path: Path) -> None:
    path = _hostfile(tmp_path, "localhost slots=2\n")
    assert _check(path, [NodeRanks("any-name", 2)]) == f"hostfile {path}: 1 host(s), 2 rank(s)"
    path = _hostfile(tmp_path, "node-1 slots=2\n10.0.0.2 slots=1\n")
    hosts = [NodeRanks("node-1.cluster.local", 2), NodeRanks("node-2", 1, ("10.0.0.2",))]
    assert "2 host(s), 3 rank(s)" in _check(path, hosts)


@pytest.mark.parametrize(
    ("text", "hosts", "says"),
    [
        ("localhost slots=8\n", [NodeRanks("a", 2)], "stands for 8 rank.s. on 1 host.s., but 2 came: a with 2"),
        ("a slots=1\nb slots=1\n", [NodeRanks("a", 2)], "on 2 host.s., but 2 came"),
        ("gpu-7.invalid slots=2\n", [NodeRanks("a", 2)], ":1 names host gpu-7.invalid, .* --force_multi"),
        ("a slots=1\nb slots=3\n", [NodeRanks("a", 3), NodeRanks("b", 1)], ":1 gives a 1 slots, but 3 ranks came"),
        ("localhost slots=2x\n", [NodeRanks("a", 2)], "--hostfile .*hosts:1: 'localhost slots=2x'"),
        ("localhost slots=1\nb slots=1\n", [NodeRanks("a", 1), NodeRanks("b", 1)], "names host localhost"),
    ],
)
def test_ranks_that_differ_are_refused(tmp_path: Path, text: str, hosts: list[NodeRanks], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        _check(_hostfile(tmp_path, text), hosts)


def test_mistyped_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no such file; deepspeed only warned"):
        _check(tmp_path / "hsots", [NodeRanks("a", 2)])


def test_filters_are_followed_within_the_hostfile(tmp_path: Path) -> None:
    path = _hostfile(tmp_path, "a slots=4\nb slots=4\n")
    assert "after filters" in _check(path, [NodeRanks("a", 2)], filtered=True, world={"a": [0, 3]})
    with pytest.raises(LaunchError, match=r"runs 8 ranks on a, but .*:1 gives it 4 slots"):
        _check(path, [NodeRanks("a", 8)], filtered=True, world={"a": list(range(8))})
