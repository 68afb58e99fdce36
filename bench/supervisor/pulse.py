"""Heartbeats: a thread that says we live and notices who does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench import jobfolder
from bench.supervisor.board import Board
from bench.supervisor.contract import SessionInterrupted, SessionLost
from bench.supervisor.meeting import Seat
from bench.supervisor.processes import ProcessKey

_PERIOD_S = 1.0


class Pulse:
    """Writes this rank's beat and reads those of the peers it watches.

    It has a connection of its own, so that a long call of the main thread does not silence it.
    """

    def __init__(self, board: Board, me: Seat, peers: Sequence[Seat], lost_s: float) -> None:
        self._board = board
        self._me = me
        self._lost_s = lost_s
        now = time.monotonic()
        self._peers = {seat.rank: seat for seat in peers if seat.rank != me.rank}
        self._seen = dict.fromkeys(self._peers, now)
        self._beats: dict[int, bytes] = {}
        self._lost: dict[int, str] = {}
        self._gone: dict[int, dict] = {}
        self._failure = ""
        self._turned = now
        self._job: tuple[int, Path] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stops beating; returns when the thread is gone or stuck in the store."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(3 * _PERIOD_S)

    def attend_to(self, number: int, job_dir: Path) -> None:
        """Names the job, by number and folder, whose phase is sent along."""
        self._job = (number, job_dir)

    def lost(self) -> dict[int, str]:
        """Returns the ranks that are lost or left early, each with the reason."""
        left = {rank: said["why"] for rank, said in dict(self._gone).items()}
        return {**self._lost, **left}

    def check_interrupted(self) -> None:
        """Raises SessionInterrupted when a peer was asked to stop: the launch is being taken down."""
        for rank, said in dict(self._gone).items():
            if said["signum"]:
                raise SessionInterrupted(said["signum"], f"rank {rank}: {said['why']}")

    def check_store(self) -> None:
        """Raises SessionLost when the store has failed or has not answered for too long."""
        if self._failure:
            raise SessionLost(self._failure)
        silent = time.monotonic() - self._turned
        if silent > self._lost_s:
            raise SessionLost(f"the session's store has not answered for {silent:.0f} s")

    def phases(self, number: int) -> dict[int, str]:
        """Returns the last known phase of job `number` on each watched rank and on this one."""
        beats = {rank: json.loads(beat) for rank, beat in list(self._beats.items())}
        beats[self._me.rank] = [0, *self._own_phase()]
        # A beat that was sent before its rank took up this job tells of the job before.
        return {rank: phase if job == number else "" for rank, (_, job, phase) in sorted(beats.items())}

    def _own_phase(self) -> tuple[int, str]:
        job = self._job
        return (-1, "") if job is None else (job[0], jobfolder.read_phase(job[1]))

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            try:
                self._turn(count)
            except SessionLost as error:
                self._failure = str(error)
                return
            count += 1
            self._turned = time.monotonic()
            self._stop.wait(_PERIOD_S)

    def _turn(self, count: int) -> None:
        self._board.put(f"beat/{self._me.rank}", json.dumps([count, *self._own_phase()]))
        for rank, seat in list(self._peers.items()):
            beat = self._board.peek(f"beat/{rank}")
            now = time.monotonic()
            if beat is not None and beat != self._beats.get(rank):
                self._beats[rank], self._seen[rank] = beat, now
            said = self._board.peek(f"gone/{rank}")
            if said is not None:
                self._gone[rank] = json.loads(said)
            elif now - self._seen[rank] > self._lost_s:
                self._lost[rank] = f"its supervisor has been silent for {now - self._seen[rank]:.0f} s"
            elif self._is_near(seat) and not ProcessKey(seat.pid, seat.started).alive():
                # On one machine the kernel tells sooner than the silence does.
                self._lost[rank] = f"its supervisor (pid {seat.pid}) died"

    def _is_near(self, seat: Seat) -> bool:
        same = (seat.host, seat.pid_space) == (self._me.host, self._me.pid_space)
        return same and bool(seat.pid_space)
