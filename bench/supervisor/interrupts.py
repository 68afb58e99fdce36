"""Reasons to stop that come from outside: signals, a launcher that died, a main loop that stands still."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import threading
import time
from types import FrameType

from bench.supervisor.contract import SessionInterrupted
from bench.supervisor.hostcheck import launcher_pids
from bench.supervisor.processes import ProcessKey, process_key

_PR_SET_PDEATHSIG = 1
_LAUNCHER_CHECK_S = 0.5
_IMPATIENT = 3
"""After so many Ctrl-C the user means it: Python's own handling takes over."""


class Interrupts:
    """Remembers that the session must stop; `check` raises it where stopping is orderly."""

    def __init__(self, deadman_s: float) -> None:
        self._deadman_s = deadman_s
        self._signum: int | None = None
        self._why = ""
        self._count = 0
        self._previous: dict[int, object] = {}
        self._launcher: list[ProcessKey] = []
        self._next_look = 0.0

    def install(self, watch_launcher: bool) -> None:
        """Takes over SIGINT and SIGTERM (main thread only) and watches the launcher's processes.

        Args:
            watch_launcher: False for a process that no launcher started: its shell may go away.
        """
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._on_signal)
            # Chained to the default action: a dump of all stacks, then death, even inside a blocked call.
            faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
        if watch_launcher:
            self._launcher = [key for key in map(process_key, launcher_pids()) if key is not None]
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

    def uninstall(self) -> None:
        """Gives the signals back."""
        self.rest()
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous.clear()
        if self._launcher:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._count += signum == signal.SIGINT
        if self._count >= _IMPATIENT:
            raise KeyboardInterrupt
        # Launchers send several signals in a row; the first one tells what happened.
        if self._signum is None:
            self._signum, self._why = signum, f"stopped by {signal.Signals(signum).name}"

    def check(self) -> None:
        """Raises SessionInterrupted if the session must stop; winds up the dead man's switch."""
        self.wind_up()
        if self._signum is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LAUNCHER_CHECK_S
            if not all(key.alive() for key in self._launcher):
                self._signum, self._why = signal.SIGTERM, "stopped because the launcher died"
        if self._signum is not None:
            raise SessionInterrupted(self._signum, self._why)

    def wind_up(self) -> None:
        """Starts the dead man's switch anew.

        It is an alarm: if the main loop does not come by again within the limit, as in a store call that
        never returns, SIGALRM dumps all stacks and ends the process, and the node server kills its worker.
        """
        signal.setitimer(signal.ITIMER_REAL, self._deadman_s)

    def rest(self) -> None:
        """Stops the dead man's switch while the session is not in charge of the main thread."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    @property
    def signum(self) -> int | None:
        """The signal that asked to stop, or None."""
        return self._signum
