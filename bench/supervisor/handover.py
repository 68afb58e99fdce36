"""After a job: every rank hands its files over, rank 0 puts them side by side."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.supervisor import shipping
from bench.supervisor.board import Attend, Board
from bench.supervisor.contract import Limits, RankEnd
from bench.supervisor.job_watch import read_abort
from bench.supervisor.orders import Order

logger = logging.getLogger("ftbench.supervisor")
_AFTER_JOB_S = 120.0


class _NobodyTakes(Exception):
    """Rank 0 has given up the job or this rank's files."""


class _SenderLost(Exception):
    """The rank whose files are being taken is gone."""


def hand_over(board: Board, order: Order, rank: int, job_dir: Path, limits: Limits, attend: Attend) -> None:
    """Sends this rank's files to rank 0; what cannot be sent is missed and named there.

    Args:
        board: The session's board.
        order: The job that has ended here.
        rank: This session rank.
        job_dir: Its job folder.
        limits: How much to send.
        attend: Called while waiting.
    """
    key = _key(order, rank)

    def attend_both() -> None:
        attend()
        abort = read_abort(board, order)
        if (abort and abort["kind"] == "interrupted") or board.peek(f"{key}/refused") is not None:
            raise _NobodyTakes

    # Rank 0 takes files once all ranks have ended, so that moving them disturbs no measurement.
    patience = order.job.timeout_s + _AFTER_JOB_S
    try:
        parcel = shipping.pack(job_dir, limits.ship_bytes)
        if shipping.send(board, key, job_dir, parcel, attend_both, patience):
            shipping.wait_until_taken(board, key, attend_both, patience)
    except _NobodyTakes:
        logger.info("job %s: rank 0 did not take all files of rank %d", order.job.name, rank)
    except OSError as error:
        logger.warning("job %s: files of rank %d cannot be sent: %s", order.job.name, rank, error)


class Collector:
    """Rank 0's side: puts the files of all ranks of a job side by side."""

    def __init__(self, board: Board, limits: Limits, attend: Attend, lost: Callable[[], dict[int, str]]) -> None:
        """Prepares.

        Args:
            board: The session's board.
            limits: How long to wait for a piece.
            attend: Called while waiting.
            lost: Returns the ranks that are gone, each with the reason.
        """
        self._board = board
        self._limits = limits
        self._attend = attend
        self._lost = lost

    def collect(self, order: Order, end: RankEnd, own_job_dir: Path, files: Path) -> RankEnd:
        """Fills files/rank<r>; returns the rank's end with what is missing, each with the reason."""
        target = files / f"rank{end.rank}"
        target.mkdir(parents=True, exist_ok=True)
        if end.missing_files:
            return end
        missing = keep_own(own_job_dir, target) if end.rank == 0 else self._take(order, end.rank, target)
        return dataclasses.replace(end, missing_files=missing)

    def _take(self, order: Order, rank: int, target: Path) -> tuple[str, ...]:
        key = _key(order, rank)

        def attend() -> None:
            self._attend()
            if rank in self._lost():
                raise _SenderLost(self._lost()[rank])

        try:
            missing = shipping.receive(self._board, key, target, attend, self._limits.ship_idle_s)
        except (_SenderLost, OSError) as error:
            missing = (f"all files that are not there (taking them failed: {error})",)
        if missing:
            # A sender whose list was worked off no longer looks at this.
            self._board.put(f"{key}/refused", "1")
        for partial in target.rglob(f"*{shipping.PARTIAL}"):
            partial.unlink()
        return missing


def keep_own(job_dir: Path, target: Path) -> tuple[str, ...]:
    """Moves rank 0's own files to where the others' go; returns what is missing, each with the reason."""
    try:
        parcel = shipping.pack(job_dir, 2**63)
        for name, _ in parcel.files:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(shipping.source_path(job_dir, name), path)
    except OSError as error:
        return (f"all files that are not there (moving them failed: {error})",)
    return parcel.left


def _key(order: Order, rank: int) -> str:
    return f"ship/{order.number}/{rank}"
