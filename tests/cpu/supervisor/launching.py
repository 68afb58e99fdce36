"""Starts real launches for the tests, waits on conditions with limits, and looks for processes left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.supervisor.processes import process_key

DRIVE = Path(__file__).with_name("drive.py")
BINARIES = Path(sys.executable).parent
_MARKER = "FTBENCH_TEST_LAUNCH"
_PLAIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FTBENCH_NODE_SERVER")


def free_port() -> int:
    """Returns a port that nobody uses at this moment."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def wait_for(condition: Callable[[], object], limit_s: float, what: str) -> object:
    """Polls a condition; fails after `limit_s` naming it."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.02)
    return value


class Launched:
    """Processes of one launch, all descendants of which carry a mark in their environment."""

    def __init__(self, folder: Path, jobs: Sequence[dict], **env: str) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.processes: list[subprocess.Popen] = []
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ready").mkdir(exist_ok=True)
        (folder / "jobs.json").write_text(json.dumps(list(jobs)))
        inherited = {key: value for key, value in os.environ.items() if key not in _PLAIN}
        self.env = {**inherited, _MARKER: self.mark, "OMP_NUM_THREADS": "1", **env}

    def start(self, command: Sequence[str], **env: str) -> subprocess.Popen:
        """Starts one process of the launch, its output in a file."""
        path = self.folder / f"output{len(self.processes)}"
        with path.open("wb") as output:
            process = subprocess.Popen(
                command, env={**self.env, **env}, stdout=output, stderr=output, start_new_session=True
            )
        self.processes.append(process)
        return process

    def start_ranks(self, world_size: int = 2, port: int | None = None, ranks: Sequence[int] | None = None) -> None:
        """Starts ranks by their environment alone, as a scheduler would."""
        port = port or free_port()
        for rank in range(world_size) if ranks is None else ranks:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            env = {name: str(value) for name, value in {**place, **address}.items()}
            self.start([sys.executable, str(DRIVE), str(self.folder)], **env)

    def wait(self, limit_s: float = 60) -> list[int]:
        """Waits for all started processes; returns their exit codes."""
        wait_for(lambda: all(p.poll() is not None for p in self.processes), limit_s, f"end of launch: {self.output()}")
        return [process.returncode for process in self.processes]

    def output(self) -> str:
        """Returns what all started processes printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output*")))

    def ends(self) -> list[dict]:
        """Returns the noted ends of jobs and, last, of the session."""
        path = self.folder / "ends.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def job_ends(self) -> dict[str, dict]:
        """Returns the ends of jobs by name."""
        return {end["name"]: end for end in self.ends() if "name" in end}

    def closed(self) -> str:
        """Returns how the leader left."""
        ends = self.ends()
        assert ends and "closed" in ends[-1], self.output()
        return ends[-1]["closed"]

    def supervisors(self) -> list[int]:
        """Returns the supervisors' pids in rank order."""
        return json.loads((self.folder / "supervisors").read_text())

    def await_workers(self, count: int = 2) -> list[int]:
        """Waits until `wait_for_ever` runs on all ranks; returns the workers' pids in rank order."""
        ready = self.folder / "ready"

        def all_there() -> bool:
            return all((ready / f"rank{r}").exists() and (ready / f"rank{r}").read_text() for r in range(count))

        wait_for(all_there, 40, f"workers of all ranks: {self.output()}")
        return [int((ready / f"rank{rank}").read_text()) for rank in range(count)]

    def living(self) -> list[int]:
        """Returns the pids that carry this launch's mark and are not dead."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if f"{_MARKER}={self.mark}".encode() in environ:
                key = process_key(int(entry))
                if key is not None and key.alive():
                    found.append(int(entry))
        return found

    def assert_nothing_left(self, limit_s: float = 15) -> None:
        """Fails if a process of the launch outlives it, or if its scratch folder is not empty."""
        wait_for(lambda: not self.living(), limit_s, f"no process left; {self.describe_living()}")

    def describe_living(self) -> str:
        """Returns the command lines of what still lives."""
        lines = []
        for pid in self.living():
            try:
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return " | ".join(lines)

    def kill(self) -> None:
        """Ends whatever the launch has left, by pid."""
        for pid in self.living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.wait(10)


def job(name: str, entry: str = "succeed", timeout_s: float = 30, ranks: str = "all", **payload: object) -> dict:
    """Returns the fields of a Job that calls a dummy."""
    return {"name": name, "entry": f"dummies:{entry}", "payload": payload, "timeout_s": timeout_s, "ranks": ranks}
