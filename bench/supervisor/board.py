"""The notice board of a session: a TCPStore that is never waited on without a limit."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore

from bench.errors import LaunchError
from bench.supervisor.contract import SessionLost
from bench.supervisor.launch import Launch

_CALL_LIMIT = timedelta(seconds=30)
_POLL_S = 0.02
_NOTHING = "\x01nothing\x01"

Attend = Callable[[], None]
"""Called while waiting; raises to end the wait (signals, a lost leader)."""


class Board:
    """Keys and values under one prefix; every call returns at once or raises SessionLost."""

    def __init__(self, store: TCPStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def put(self, key: str, value: str | bytes) -> None:
        """Writes a value, at most 8 MiB."""
        self._call(lambda: self._store.set(self._prefix + key, value))

    def peek(self, key: str) -> bytes | None:
        """Returns a value, or None while there is none."""
        # A comparison that never holds is the only read that does not block: between `check` and `get`
        # the key may be removed, and `get` would then wait for its return.
        value = self._call(lambda: self._store.compare_set(self._prefix + key, _NOTHING, _NOTHING))
        return None if value == _NOTHING.encode() else value

    def claim(self, key: str, value: str) -> bool:
        """Writes the value unless another was first; tells whether ours stands."""
        stands = self._call(lambda: self._store.compare_set(self._prefix + key, "", value))
        return stands == value.encode()

    def remove(self, key: str) -> None:
        """Deletes a key that may not exist."""
        self._call(lambda: self._store.delete_key(self._prefix + key))

    def wait(self, key: str, limit_s: float, attend: Attend) -> bytes | None:
        """Polls for a value; returns None when `limit_s` has passed."""
        deadline = time.monotonic() + limit_s
        while (value := self.peek(key)) is None:
            attend()
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return value

    def clone(self) -> Board:
        """Returns a board with a connection of its own, for another thread."""
        return Board(self._call(self._store.clone), self._prefix)

    @staticmethod
    def _call(function: Callable):
        try:
            return function()
        except RuntimeError as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SessionLost(f"the session's store cannot be reached: {text}") from error


def open_board(launch: Launch, limit_s: float, attend: Attend) -> Board:
    """Hosts the session's store on rank 0, joins it elsewhere.

    Raises:
        LaunchError: The port is taken, or nobody hosts a store there within `limit_s`.
    """
    # Under torchrun the agent owns the port; a restarted group must not read the old group's keys.
    prefix = f"ftbench/{launch.attempt}/" if launch.launcher == "torchrun" else "ftbench/"
    if launch.world_size == 1:
        return Board(host_store("127.0.0.1", 0), prefix)
    if launch.rank == 0 and launch.launcher != "torchrun":
        return Board(host_store(launch.master_addr, launch.master_port), prefix)
    _await_listener(launch, limit_s, attend)
    try:
        store = TCPStore(
            launch.master_addr, launch.master_port, None, False, timeout=_CALL_LIMIT, wait_for_workers=False
        )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise LaunchError(
            f"rank {launch.rank} cannot join {launch.master_addr}:{launch.master_port}: {first}"
        ) from error
    return Board(store, prefix)


def host_store(address: str, port: int) -> TCPStore:
    """Opens a store on this machine; port 0 takes a free one.

    Raises:
        LaunchError: The port is taken.
    """
    try:
        return TCPStore(address, port, None, True, timeout=_CALL_LIMIT, wait_for_workers=False)
    except RuntimeError as error:
        text = str(error).splitlines()[0]
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            text = "it is already in use"
        raise LaunchError(
            f"rank 0 cannot listen on port {port}: {text}; choose another with `--master_port N` "
            "(deepspeed, torchrun) or MASTER_PORT=N (mpirun -x, srun)"
        ) from error


def _await_listener(launch: Launch, limit_s: float, attend: Attend) -> None:
    """Waits until the port is open: TCPStore's own retries print warnings and ignore signals."""
    deadline = time.monotonic() + limit_s
    last = ""
    while True:
        attend()
        try:
            socket.create_connection((launch.master_addr, launch.master_port), timeout=3).close()
            return
        except socket.gaierror as error:
            last = f"host name not known ({error.strerror})"
        except OSError as error:
            last = errno.errorcode.get(error.errno or 0, str(error))
        if time.monotonic() > deadline:
            raise LaunchError(
                f"rank {launch.rank} waited {limit_s:g} s for rank 0 at "
                f"{launch.master_addr}:{launch.master_port}: {last}"
            )
        time.sleep(0.05)
