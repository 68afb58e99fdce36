"""The node server's side of one worker: its birth, its stop in three steps, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.supervisor.processes import children_of
from bench.supervisor.worker_main import die_with_parent, leave, run_worker

_ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """A running worker, leader of its own session and process group."""

    DUMP_S = 0.3
    """A worker gets so long to write where its threads stand before it is asked to end."""
    KILL_AFTER_S = 3.0
    """A worker gets so long to end after SIGTERM."""

    def __init__(self, pid: int, popen: subprocess.Popen | None = None) -> None:
        self.pid = pid
        self._popen = popen
        self._steps: list[tuple[float, int]] = []

    @classmethod
    def fork(cls, request: dict, close_in_child: Callable[[], None]) -> WorkerProcess:
        """Forks this process; the child never returns from here.

        Args:
            request: See `node_server`.
            close_in_child: Closes what belongs to the server alone.
        """
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return cls(pid)
        code = 70
        try:
            os.setsid()
            _restore_signals()
            die_with_parent(parent)
            close_in_child()
            _replace_streams(request["log"])
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            code = run_worker(request)
        except BaseException as error:
            os.write(2, f"worker could not start: {type(error).__name__}: {error}\n".encode())
        finally:
            leave(code)
        raise AssertionError("unreachable")

    @classmethod
    def spawn(cls, request: dict) -> WorkerProcess:
        """Starts a fresh interpreter: slower, but nothing is inherited."""
        path = Path(request["job_dir"]) / "request.json"
        # The environment may hold secrets and travels apart from the file.
        kept = {key: value for key, value in request.items() if key != "env"}
        path.write_text(json.dumps({**kept, "parent": os.getpid()}), encoding="utf-8")
        search = os.pathsep.join(filter(None, (str(_ROOT), request["env"].get("PYTHONPATH"))))
        with open(request["log"], "ab") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", "bench.supervisor.worker_main", str(path)],
                env={**request["env"], "PYTHONPATH": search},
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return cls(popen.pid, popen)

    def stop(self, dump: bool) -> None:
        """Begins the end: a stack dump if asked for, TERM, and KILL when that is not heeded."""
        if self._steps:
            return
        term = time.monotonic() + (self.DUMP_S if dump else 0.0)
        self._steps = [(term, signal.SIGTERM), (term + self.KILL_AFTER_S, signal.SIGKILL)]
        if dump:
            # To the worker alone: to its children the signal would be deadly.
            _send(os.kill, self.pid, signal.SIGUSR1)
        self.advance_stop()

    def advance_stop(self) -> None:
        """Takes the steps of a begun stop that are due."""
        while self._steps and self._steps[0][0] <= time.monotonic():
            _, signum = self._steps.pop(0)
            _send(os.killpg, self.pid, signum)
            if signum == signal.SIGKILL:
                self._steps = [(time.monotonic() + 1.0, signal.SIGKILL)]

    def reap(self) -> tuple[int | None, int | None]:
        """Kills what is left of the group, then collects (exit code, signal); call it on a dead worker."""
        _send(os.killpg, self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if self._popen is not None:
            self._popen.returncode = code
        return (code, None) if code >= 0 else (None, -code)

    @staticmethod
    def kill_strays(living: set[int]) -> None:
        """Kills descendants of dead workers that left their group: the kernel has made them our children.

        Args:
            living: Workers that are still at work; their own children are not ours.
        """
        for pid in children_of(os.getpid()):
            if pid not in living:
                _send(os.kill, pid, signal.SIGKILL)


def _send(function: Callable[[int, int], None], target: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        function(target, signum)


def _restore_signals() -> None:
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _replace_streams(log: str) -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(empty, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(empty)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        # A killed worker must not take its last lines with it. A library may have wrapped the stream.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
