"""One process per node that has imported the heavy modules and forks workers on request.

A supervisor opens one connection per worker. Lines of JSON go both ways:

    server: {"event": "hello", "mode": "fork" | "spawn", "why": …, "failed": {module: error}}
    client: {"op": "start", "request": {entry, job_dir, cwd, env, log, sys_path}}
    server: {"event": "started", "pid": …}            or {"event": "refused", "why": …}
    client: {"op": "stop", "dump": true}              SIGUSR1, TERM to the group, KILL
    server: {"event": "ended", "exit_code": …, "signal": …}

A connection that closes is a supervisor that died: its worker's group is killed. The server is a single
thread around one selector, since only a process without threads may fork. It touches no device.
Standalone, so that many launches share the imports:

    python -m bench.supervisor.node_server --socket PATH --preload torch,deepspeed
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.supervisor.forksafety import preload_environment, why_not_fork
from bench.supervisor.worker_main import die_with_parent
from bench.supervisor.worker_process import WorkerProcess

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.25
_LINE_LIMIT = 16 * 2**20


class Connection:
    """One supervisor's request: at most one worker."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.worker: WorkerProcess | None = None
        self.buffer = b""
        self.open = True

    def send(self, **message: object) -> None:
        """Sends one line; a peer that is gone is noticed by the next read."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.open = False

    def read_lines(self) -> list[dict]:
        """Returns complete messages; marks the connection closed at its end."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self.buffer) > _LINE_LIMIT:
            self.open = False
            return []
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


class NodeServer:
    """Accepts requests, forks or spawns workers, reaps them and kills what loses its supervisor."""

    def __init__(self, listener: socket.socket, why_spawn: str, failed: dict[str, str]) -> None:
        self.listener = listener
        self.why_spawn = why_spawn
        self.failed = failed
        self.connections: list[Connection] = []
        self.stopping = False
        self.selector = selectors.DefaultSelector()
        self.wake_in, self.wake_out = socket.socketpair()
        for sock in (listener, self.wake_in, self.wake_out):
            sock.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, "listener")
        self.selector.register(self.wake_in, selectors.EVENT_READ, "wake")
        signal.set_wakeup_fd(self.wake_out.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._ask_to_stop)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _ask_to_stop(self, signum: int, frame: object) -> None:
        self.stopping = True

    def serve(self, parent: int | None) -> None:
        """Runs until a signal, or until the parent is gone; leaves no child behind."""
        while not self.stopping and (parent is None or os.getppid() == parent):
            self._turn()
        for connection in self.connections:
            if connection.worker:
                connection.worker.stop(dump=False)
        deadline = time.monotonic() + WorkerProcess.KILL_AFTER_S + 1
        while any(c.worker for c in self.connections) and time.monotonic() < deadline:
            self._turn()
        WorkerProcess.kill_strays(set())

    def _turn(self) -> None:
        for key, _ in self.selector.select(_TICK_S):
            if key.data == "listener":
                self._accept()
            elif key.data == "wake":
                self.wake_in.recv(4096)
            else:
                self._hear(key.data)
        self._reap()
        for connection in list(self.connections):
            if not connection.open:
                self._forget(connection)
            if connection.worker:
                connection.worker.advance_stop()
            elif not connection.open:
                connection.sock.close()
                self.connections.remove(connection)

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        sock.setblocking(True)
        # A supervisor that does not read must not block the server for ever.
        sock.settimeout(5)
        connection = Connection(sock)
        self.connections.append(connection)
        self.selector.register(sock, selectors.EVENT_READ, connection)
        mode = "spawn" if self.why_spawn else "fork"
        connection.send(event="hello", mode=mode, why=self.why_spawn, failed=self.failed, pid=os.getpid())

    def _hear(self, connection: Connection) -> None:
        for message in connection.read_lines():
            if message["op"] == "start" and connection.worker is None:
                self._start(connection, message["request"])
            elif message["op"] == "stop" and connection.worker:
                connection.worker.stop(dump=bool(message.get("dump")))

    def _start(self, connection: Connection, request: dict) -> None:
        try:
            if self.why_spawn:
                connection.worker = WorkerProcess.spawn(request)
            else:
                connection.worker = WorkerProcess.fork(request, self._close_in_child)
        except OSError as error:
            connection.send(event="refused", why=f"{type(error).__name__}: {error}")
            return
        connection.send(event="started", pid=connection.worker.pid)

    def _close_in_child(self) -> None:
        """A worker must hold no end of anyone's connection, or its death would go unnoticed."""
        signal.set_wakeup_fd(-1)
        self.selector.close()
        for sock in (self.listener, self.wake_in, self.wake_out, *(c.sock for c in self.connections)):
            sock.close()

    def _reap(self) -> None:
        while True:
            try:
                # Look without reaping first: while the zombie is there, its group's id cannot be reused.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            owner = next((c for c in self.connections if c.worker and c.worker.pid == found.si_pid), None)
            if owner is None:
                os.waitpid(found.si_pid, 0)
                continue
            exit_code, signum = owner.worker.reap()
            owner.worker = None
            WorkerProcess.kill_strays({c.worker.pid for c in self.connections if c.worker})
            owner.send(event="ended", exit_code=exit_code, signal=signum)

    def _forget(self, connection: Connection) -> None:
        """Stops listening to a supervisor that is gone and ends its worker, if it has not yet."""
        if connection.sock in {key.fileobj for key in self.selector.get_map().values()}:
            self.selector.unregister(connection.sock)
        if connection.worker:
            connection.worker.stop(dump=False)


def bind(path: Path) -> socket.socket:
    """Listens on a unix socket; a stale file of a dead server is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(128)
    return listener


def preload(modules: Sequence[str]) -> dict[str, str]:
    """Imports modules; returns those that failed, with the error (the worker's own import will tell)."""
    failed = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the standalone server."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--socket", type=Path, required=True, help="path of the unix socket, in a private folder")
    parser.add_argument("--preload", default="", help="comma-separated modules to import once")
    parser.add_argument("--detached", action="store_true", help="outlive the process that started this server")
    parser.add_argument("--parent", type=int, help="pid to die with; the starting process when not given")
    parser.add_argument("--private-folder", action="store_true", help="remove the socket's folder at the end")
    options = parser.parse_args(argv)
    # During the imports too a TERM must leave through the `finally` below.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    parent = None if options.detached else options.parent or os.getppid()
    if parent is not None:
        die_with_parent(parent, signal.SIGTERM)
    os.environ.update(preload_environment(dict(os.environ)))
    # Bound before the imports, so that supervisors can queue up meanwhile.
    listener = bind(options.socket)
    try:
        failed = preload([name for name in options.preload.split(",") if name])
        why_spawn = why_not_fork()
        for name, error in failed.items():
            print(f"node server: cannot preload {name}: {error}", file=sys.stderr)
        if why_spawn:
            print(f"node server: workers are spawned, not forked: {why_spawn}", file=sys.stderr)
        sys.stderr.flush()
        # Frozen objects are not touched by the collector, so that forks share their pages.
        gc.collect()
        gc.freeze()
        NodeServer(listener, why_spawn, failed).serve(parent)
    finally:
        options.socket.unlink(missing_ok=True)
        if options.private_folder:
            shutil.rmtree(options.socket.parent, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
