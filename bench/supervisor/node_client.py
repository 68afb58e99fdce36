"""The supervisor's side of the node server: starting one, and holding the connection of one worker."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.errors import LaunchError

SHARED_SERVER_VARIABLE = "FTBENCH_NODE_SERVER"
_ROOT = Path(__file__).resolve().parents[2]


class OwnNodeServer:
    """A node server that lives as long as this supervisor, in a private temporary folder."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._preload = tuple(preload)
        # Not in the scratch folder: a unix socket's path may hold 107 bytes only.
        too_long = len(tempfile.gettempdir()) > 60
        self._folder = Path(tempfile.mkdtemp(prefix="ftbench-", dir="/tmp" if too_long else None))
        self.socket_path = self._folder / "server.sock"
        self._log = self._folder / "server.log"
        self._process: subprocess.Popen | None = None

    def ensure_running(self) -> None:
        """Starts the server, again if it died; its imports go on in the background."""
        if self._process is not None and self._process.poll() is None:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        search = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "bench.supervisor.node_server"]
        command += ["--socket", str(self.socket_path), "--preload", ",".join(self._preload)]
        command += ["--parent", str(os.getpid()), "--private-folder"]
        with self._log.open("ab") as log:
            # Its own session: Ctrl-C in the terminal must reach supervisors, not the server.
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": search},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def why_dead(self) -> str:
        """Returns how the server ended and what it said last, or an empty string while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        try:
            last = " | ".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
        except OSError:
            last = ""
        return f"the node server ended with {code}{': ' if last else ''}{last}"

    def close(self, limit_s: float) -> None:
        """Ends the server, which ends its workers, and removes its folder."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def find_server(local_rank: int, preload: Sequence[str]) -> tuple[str, OwnNodeServer | None]:
    """Returns the socket that this rank offers its node, and the server behind it if it is our own.

    Local rank 0 starts a server unless the environment names a running one; other ranks hear of it later.
    """
    shared = shared_server_path()
    if shared is not None:
        return str(shared), None
    if local_rank != 0:
        return "", None
    server = OwnNodeServer(preload)
    server.ensure_running()
    return str(server.socket_path), server


def shared_server_path() -> Path | None:
    """Returns the socket of a running server that the environment names, or None.

    Raises:
        LaunchError: The variable is set, but nobody listens there.
    """
    named = os.environ.get(SHARED_SERVER_VARIABLE)
    if not named:
        return None
    probe = _try_connect(Path(named))
    if probe is None:
        raise LaunchError(
            f"{SHARED_SERVER_VARIABLE}={named}: no node server listens there; start one with "
            f"`python -m bench.supervisor.node_server --socket {named}` or unset the variable"
        )
    probe.close()
    return Path(named)


class WorkerLink:
    """The connection that keeps one worker alive: when it closes, the server kills the worker's group."""

    def __init__(self, socket_path: Path, request: dict) -> None:
        self._path = socket_path
        self._request = request
        self._sock: socket.socket | None = None
        self._buffer = b""
        self.mode = ""
        self.remark = ""
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.failure = ""
        self.ended = False

    def poll(self, wait_s: float) -> None:
        """Connects if need be, then handles what the server says within `wait_s`."""
        if self.ended:
            return
        if self._sock is None:
            self._sock = _try_connect(self._path)
            if self._sock is None:
                time.sleep(min(wait_s, 0.05))
                return
        ready, _, _ = select.select([self._sock], [], [], wait_s)
        if ready:
            self._read()

    def stop(self, dump: bool) -> None:
        """Asks the server for the worker's end."""
        if self.ended:
            return
        if self.pid is None:
            self.abandon("stopped before it had started")
            return
        self._send({"op": "stop", "dump": dump})

    def kill(self, why: str = "the node server did not answer") -> None:
        """Kills the worker's group without the server, which has died or does not answer."""
        if self.pid is not None and not self.ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._end_with(why)

    def abandon(self, why: str) -> None:
        """Gives up a request that has not led to a worker; if it still does, the server kills it."""
        self.close()
        self._end_with(why)

    def close(self) -> None:
        """Closes the connection; a worker that still lives is killed by the server."""
        if self._sock is not None:
            self._sock.close()

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.kill("the node server died")
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))

    def _handle(self, message: dict) -> None:
        event = message["event"]
        if event == "hello":
            self.mode = message["mode"]
            remarks = [f"workers are spawned, not forked: {message['why']}"] if message["why"] else []
            remarks += [f"cannot preload {name}: {error}" for name, error in message["failed"].items()]
            self.remark = "; ".join(remarks)
            self._send({"op": "start", "request": self._request})
        elif event == "started":
            self.pid = message["pid"]
        elif event == "refused":
            self._end_with(message["why"])
        elif event == "ended":
            self.exit_code, self.signal = message["exit_code"], message["signal"]
            self.ended = True

    def _send(self, message: dict) -> None:
        # The next read sees the end of a broken connection and says why.
        with contextlib.suppress(OSError):
            self._sock.sendall(json.dumps(message).encode() + b"\n")

    def _end_with(self, failure: str) -> None:
        if not self.ended:
            self.failure = failure
            self.ended = True


def _try_connect(path: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(5)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return sock
