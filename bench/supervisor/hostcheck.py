"""Did the deepspeed launcher do what its hostfile says?

It only warns about a mistyped path and takes the local devices, runs a single remote host locally, and
never compares slots with anything. So the command lines of our parents are read and compared.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.errors import LaunchError, SpecError
from bench.spec.hostfile import Host, parse_hostfile

if TYPE_CHECKING:
    from bench.supervisor.launch import Launch

_FILTERS = ("-i", "--include", "-e", "--exclude", "--num_nodes", "--num_gpus", "--num_accelerators")
_LAUNCHER_NAMES = (
    *("deepspeed", "ds", "deepspeed.pt", "torchrun", "mpirun", "mpiexec", "prterun", "prte", "prted"),
    *("orterun", "orted", "srun", "slurmstepd"),
)
_LAUNCHER_MODULES = ("deepspeed.launcher.runner", "deepspeed.launcher.launch", "torch.distributed.run")


@dataclass(frozen=True)
class NodeRanks:
    """One node as the ranks found it."""

    name: str
    """What the node calls itself."""
    ranks: int
    """Ranks that came from there."""
    addresses: tuple[str, ...] = ()
    """Its network addresses."""


@dataclass(frozen=True)
class DeepspeedCommand:
    """What the deepspeed launcher was asked for, read from our parents' command lines."""

    hostfile: str | None
    """Absolute path of `--hostfile`, or None when not given or not visible from this node."""
    filtered: bool = False
    """Includes, excludes or counts make it run on less than the hostfile."""
    world: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Host to local slots, as the launcher resolved it."""


def check_hostfile(launch: Launch, hosts: Sequence[NodeRanks], command: DeepspeedCommand | None = None) -> str:
    """Compares the ranks that met with the hostfile that the launcher was given.

    Args:
        launch: This process's launch; only rank 0 need check.
        hosts: The nodes in rank order.
        command: The launcher's command, looked up among the parents when not given.

    Returns:
        One line for the log: what was compared, or why nothing could be.

    Raises:
        LaunchError: The hostfile is missing or wrong, or the ranks are not those it names.
    """
    if launch.launcher != "deepspeed":
        return f"no hostfile to check: launched by {launch.launcher}"
    command = command or find_deepspeed()
    path = launch.hostfile or (command.hostfile if command else None)
    if path is None:
        return "no hostfile to check: the deepspeed command on this node has no --hostfile"
    if not Path(path).is_file():
        raise LaunchError(
            f"--hostfile {path}: no such file; deepspeed only warned and took this machine's devices instead"
        )
    try:
        named = parse_hostfile(path)
    except SpecError as error:
        raise LaunchError(f"--hostfile {error}") from error
    filtered = command is not None and command.filtered
    if filtered:
        named = _apply_filters(path, named, command)
    _compare(path, named, launch.world_size, hosts)
    return f"hostfile {path}: {len(named)} host(s), {launch.world_size} rank(s){' after filters' if filtered else ''}"


def _apply_filters(path: str, named: Sequence[Host], command: DeepspeedCommand) -> list[Host]:
    """Keeps what the launcher's --include, --exclude and counts left, as it resolved them itself."""
    known = {host.name: host for host in named}
    for name, slots in command.world.items():
        if name not in known:
            raise LaunchError(f"deepspeed runs on host {name}, which {path} does not name")
        if len(slots) > known[name].slots:
            raise LaunchError(
                f"deepspeed runs {len(slots)} ranks on {name}, but {path}:{known[name].line} gives it "
                f"{known[name].slots} slots"
            )
    return [Host(host.name, len(command.world[host.name]), host.line) for host in named if host.name in command.world]


def _compare(path: str, named: Sequence[Host], world_size: int, found: Sequence[NodeRanks]) -> None:
    expected = sum(host.slots for host in named)
    came = ", ".join(f"{node.name} with {node.ranks}" for node in found)
    if expected != world_size or len(named) != len(found):
        raise LaunchError(
            f"hostfile {path} stands for {expected} rank(s) on {len(named)} host(s), but {world_size} came: {came}; "
            "is the path the one you meant, and does deepspeed need --force_multi?"
        )
    for host, node in zip(named, found, strict=True):
        if not _same_host(host.name, node, alone=len(named) == 1):
            raise LaunchError(
                f"{path}:{host.line} names host {host.name}, but those ranks run on {node.name}; "
                "deepspeed runs a single host locally unless it is given --force_multi"
            )
        if host.slots != node.ranks:
            raise LaunchError(f"{path}:{host.line} gives {host.name} {host.slots} slots, but {node.ranks} ranks came")


def _same_host(name: str, node: NodeRanks, alone: bool) -> bool:
    if name in ("localhost", "127.0.0.1", "::1"):
        return alone
    short = name.partition(".")[0]
    if name == node.name or (not short.isdigit() and short == node.name.partition(".")[0]) or name in node.addresses:
        return True
    try:
        resolved = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return bool(resolved & set(node.addresses))


def own_addresses() -> tuple[str, ...]:
    """Returns this machine's IP addresses, without loopback."""
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            plain = address.address.partition("%")[0]
            if address.family in (socket.AF_INET, socket.AF_INET6) and plain != "::1" and not plain.startswith("127."):
                found.append(plain)
    return tuple(found)


def find_deepspeed() -> DeepspeedCommand | None:
    """Reads the command lines of this process's parents; None when none is deepspeed's."""
    return read_commands((line, folder) for _, line, folder in _launcher_parents())


def launcher_pids() -> list[int]:
    """Returns this process's parent and those further up that belong to a launcher."""
    pids = [pid for pid, _, _ in _launcher_parents()]
    return pids if os.getppid() in pids else [os.getppid(), *pids]


def _launcher_parents() -> list[tuple[int, list[str], str]]:
    found = []
    for process in psutil.Process().parents():
        try:
            line = process.cmdline()
            if not is_launcher(line):
                if found:
                    break
                continue
            found.append((process.pid, line, process.cwd()))
        except psutil.Error:
            continue
    return found


def is_launcher(line: Sequence[str]) -> bool:
    """Tells whether a command line is that of a known launcher."""
    names = [Path(word).name for word in line[:3]]
    return any(name in _LAUNCHER_NAMES for name in names) or any(word in _LAUNCHER_MODULES for word in line[:4])


def read_commands(lines: Iterable[tuple[Sequence[str], str]]) -> DeepspeedCommand | None:
    """Reads (command line, its working folder) pairs, nearest parent first."""
    hostfile, filtered, world, seen = None, False, {}, False
    for line, folder in lines:
        for word in line:
            if word.startswith("--world_info="):
                seen, world = True, _read_world(word.partition("=")[2])
        start = _runner_arguments(line)
        if start is None:
            continue
        seen = True
        options = _own_options(line[start:])
        given = options.get("--hostfile") or options.get("-H")
        hostfile = str(Path(folder, given)) if given else None
        filtered = any(name in options for name in _FILTERS)
    return DeepspeedCommand(hostfile, filtered, world) if seen else None


def _runner_arguments(line: Sequence[str]) -> int | None:
    for index, word in enumerate(line[:4]):
        if Path(word).name in ("deepspeed", "ds", "deepspeed.pt") or word == "deepspeed.launcher.runner":
            return index + 1
    return None


def _own_options(words: Sequence[str]) -> dict[str, str]:
    """Collects the launcher's options up to the script, whose own options must not be taken for them."""
    options: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, has_value, value = words[index].partition("=")
        if not has_value and name.startswith("-H") and len(name) > 2 and not name.startswith("--"):
            name, has_value, value = "-H", "=", name[2:]
        if not has_value and name not in _FLAGS and index + 1 < len(words):
            index += 1
            value = words[index]
        # argparse accepts what begins like one option only.
        is_hostfile = len(name) > 3 and "--hostfile".startswith(name)
        options["--hostfile" if is_hostfile else name] = value
        index += 1
    return options


_FLAGS = frozenset(
    (
        *("--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid", "--no_python", "--module"),
        *("--no_local_rank", "--bind_cores_to_rank", "--elastic_training", "--quiet", "-q", "--help", "-h"),
    )
)
"""Options of `deepspeed` that take no value (deepspeed/launcher/runner.py, parse_args)."""


def _read_world(text: str) -> dict[str, list[int]]:
    try:
        return json.loads(base64.urlsafe_b64decode(text))
    except ValueError:
        return {}
