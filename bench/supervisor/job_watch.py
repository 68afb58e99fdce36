"""The leader's view of a running job: time limit, lost ranks, who has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench.supervisor.board import Board
from bench.supervisor.contract import RankEnd
from bench.supervisor.meeting import Roster
from bench.supervisor.orders import Order
from bench.supervisor.pulse import Pulse
from bench.supervisor.rank_run import RankRun

OnPoll = Callable[[dict[int, str]], None]
"""Receives rank → phase of the ranks that are known, about twice a second."""

_ON_POLL_S = 0.5
_AFTER_ABORT_S = 60.0


def claim_abort(board: Board, order: Order, kind: str, rank: int, why: str) -> bool:
    """Tells all ranks to end the job, unless somebody has already; tells whether our reason stands."""
    text = json.dumps({"kind": kind, "rank": rank, "why": why})
    return board.claim(f"abort/{order.number}", text)


def read_abort(board: Board, order: Order) -> dict | None:
    """Returns why a job is to end, or None."""
    text = board.peek(f"abort/{order.number}")
    return None if text is None else json.loads(text)


class JobWatch:
    """Watches one job on behalf of all ranks."""

    def __init__(self, order: Order, board: Board, pulse: Pulse, roster: Roster, on_poll: OnPoll | None) -> None:
        self.timed_out = False
        self._order = order
        self._board = board
        self._pulse = pulse
        self._roster = roster
        self._on_poll = on_poll
        self._polled_at = 0.0
        self._abort_at: float | None = None

    def tick(self, run: RankRun) -> None:
        """Looks once at everything that can end the job from outside the workers."""
        now = time.monotonic()
        job = self._order.job
        if run.started_at is not None and now - run.started_at > job.timeout_s and self._abort_at is None:
            why = f"not finished after {job.timeout_s:g} s"
            self.timed_out = claim_abort(self._board, self._order, "timeout", 0, why)
            self._abort_at = now
        for rank, why in self.lost().items():
            if self._abort_at is None:
                claim_abort(self._board, self._order, "lost", rank, why)
                self._abort_at = now
        if self._abort_at is None and self._board.peek(f"abort/{self._order.number}") is not None:
            self._abort_at = now
        if self._on_poll and now - self._polled_at >= _ON_POLL_S:
            self._polled_at = now
            self._on_poll(self._pulse.phases(self._order.number))

    def lost(self) -> dict[int, str]:
        """Returns the job's ranks that no longer answer, with the reason."""
        return {rank: why for rank, why in self._pulse.lost().items() if rank in self._order.members}

    def gather(self, mine: RankEnd, run: RankRun, attend: Callable[[], None]) -> list[RankEnd]:
        """Waits for the other ranks' ends; a rank that is lost gets one that says so."""
        ends = {mine.rank: mine}
        while missing := [rank for rank in self._order.members if rank not in ends]:
            attend()
            self.tick(run)
            for rank in missing:
                text = self._board.peek(f"end/{self._order.number}/{rank}")
                if text is not None:
                    ends[rank] = RankEnd.from_json(text)
                elif rank in self.lost():
                    ends[rank] = self._lost_end(rank, self.lost()[rank])
                elif self._abort_at is not None and time.monotonic() - self._abort_at > _AFTER_ABORT_S:
                    ends[rank] = self._lost_end(rank, f"no answer for {_AFTER_ABORT_S:g} s after the job was stopped")
            time.sleep(0.02)
        return [ends[rank] for rank in self._order.members]

    def _lost_end(self, rank: int, why: str) -> RankEnd:
        return RankEnd(
            rank=rank,
            host=self._roster.seats[rank].host,
            exit_code=None,
            signal=None,
            status="crashed",
            reason=f"rank lost: {why}",
            phase=self._pulse.phases(self._order.number).get(rank, ""),
            log_tail="",
            wall_s=0.0,
            # Before any echo that its silence caused on other ranks.
            failed_at=0.0,
            missing_files=("all files (the rank is lost)",),
        )
