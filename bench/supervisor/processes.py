"""Questions to the kernel: is a process alive, has memory run out, who started us."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ProcessKey:
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    """Process id."""
    started: str
    """Start time in clock ticks since boot, as /proc gives it."""

    def alive(self) -> bool:
        """Tells whether this very process exists and is more than a zombie."""
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.started and stat[0] not in "ZX"


def process_key(pid: int) -> ProcessKey | None:
    """Returns the key of a living process, or None."""
    stat = _stat(pid)
    return None if stat is None else ProcessKey(pid, stat[1])


def own_key() -> ProcessKey:
    """Returns the key of this process, for peers that watch it."""
    key = process_key(os.getpid())
    assert key is not None
    return key


def _stat(pid: int) -> tuple[str, str] | None:
    try:
        # The command name may hold spaces and brackets; what follows its last bracket is regular.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return None


def pid_namespace() -> str:
    """Returns a name for the space in which this process's pids mean something."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def thread_count() -> int:
    """Counts this process's threads, also those that Python knows nothing of."""
    return len(os.listdir("/proc/self/task"))


def children_of(pid: int) -> list[int]:
    """Returns the direct children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry))
        except (OSError, IndexError):
            continue
    return found


def oom_kill_counter() -> Callable[[], int]:
    """Returns a function that reads how many processes of our control group the kernel has killed for memory."""
    files = [path for path in _counter_files() if path.exists()]

    def read() -> int:
        return sum(_read_counter(path) for path in files)

    return read


def _counter_files() -> Iterable[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        group = group.lstrip("/")
        if "memory" in controllers.split(","):
            yield _CGROUP_ROOT / "memory" / group / "memory.oom_control"
        elif not controllers:
            yield _CGROUP_ROOT / group / "memory.events"
    # Inside a container the group's own folder may be mounted as the root.
    if not any("memory" in line for line in lines):
        yield _CGROUP_ROOT / "memory.events"


def _read_counter(path: Path) -> int:
    try:
        match = re.search(r"^oom_kill (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0
    return int(match.group(1)) if match else 0
