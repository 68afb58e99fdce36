"""A session: the ranks of one launch, and the jobs that rank 0 runs on them one after another.

with Session(launch, scratch, preload=("torch", "deepspeed")) as session:
    if session.is_leader:
        end = session.run(Job("smoke", "bench.worker.main:run_case", {...}, timeout_s=600))
    else:
        session.follow()
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.supervisor import handover
from bench.supervisor.board import Board, host_store, open_board
from bench.supervisor.contract import Job, JobEnd, Limits, RankEnd, SessionInterrupted, SessionLost
from bench.supervisor.hostcheck import NodeRanks
from bench.supervisor.interrupts import Interrupts
from bench.supervisor.job_watch import JobWatch, OnPoll, claim_abort, read_abort
from bench.supervisor.launch import Launch
from bench.supervisor.meeting import Roster, Seat, await_leaving, leave, meet
from bench.supervisor.node_client import OwnNodeServer, find_server
from bench.supervisor.orders import Order, choose_members, describe_rank, worker_environment
from bench.supervisor.pulse import Pulse
from bench.supervisor.rank_run import RankRun
from bench.supervisor.scratch import make_home
from bench.supervisor.verdict import judge_job

__all__ = ["Job", "JobEnd", "Limits", "RankEnd", "Session", "SessionInterrupted", "SessionLost"]

logger = logging.getLogger("ftbench.supervisor")
_POLL_S = 0.2


class Session:
    """Brings the ranks together on entering, ends them in good order on leaving."""

    def __init__(
        self,
        launch: Launch,
        scratch: Path,
        preload: Sequence[str] = (),
        *,
        limits: Limits | None = None,
    ) -> None:
        """Prepares a session; nothing starts before it is entered.

        Args:
            launch: From `detect_launch`.
            scratch: Folder on a local disk for the jobs' files; the session removes what it puts there.
            preload: Modules that the node server imports once, before the first worker is forked.
            limits: Time limits, and how much is moved to rank 0.
        """
        self.launch = launch
        self.world_size = launch.world_size
        self.is_leader = launch.rank == 0
        self._scratch = Path(scratch)
        self._preload = tuple(preload)
        self._limits = limits or Limits()
        self._interrupts = Interrupts(self._limits.deadman_s)
        self._number = 0
        self._board: Board | None = None
        self._pulse: Pulse | None = None
        self._own_server: OwnNodeServer | None = None
        self._home: Path | None = None
        self._run: RankRun | None = None
        self._ended = False
        self._remarks: set[str] = set()

    @property
    def name(self) -> str:
        """A unique name that all ranks share."""
        return self._roster.session

    @property
    def hosts(self) -> tuple[NodeRanks, ...]:
        """The nodes in rank order, for `check_hostfile`."""
        return self._roster.nodes()

    @property
    def lost_ranks(self) -> dict[int, str]:
        """Ranks that are gone, each with the reason; jobs that need them cannot run."""
        return self._pulse.lost()

    def __enter__(self) -> Self:
        launched = self.launch.world_size > 1 or self.launch.launcher != "none"
        self._interrupts.install(watch_launcher=launched)
        try:
            self._home = make_home(self._scratch, self.launch.rank)
            server, self._own_server = find_server(self.launch.local_rank, self._preload)
            limit_s = self._limits.rendezvous_s
            self._board = open_board(self.launch, limit_s, self._interrupts.check)
            self._roster: Roster = meet(self._board, self.launch, server, limit_s, self._interrupts.check)
            self._me: Seat = self._roster.seats[self.launch.rank]
            peers = self._roster.seats if self.is_leader else self._roster.seats[:1]
            self._pulse = Pulse(self._board.clone(), self._me, peers, self._limits.lost_s)
            self._pulse.start()
        except BaseException:
            self._release()
            raise
        self._interrupts.rest()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # From here on nothing else would end a store call that never returns.
        self._interrupts.wind_up()
        try:
            self._say_goodbye(error)
        except SessionLost as lost:
            logger.warning("leaving the session: %s", lost)
        finally:
            self._release()

    def run(self, job: Job, on_poll: OnPoll | None = None) -> JobEnd:
        """Runs one job on fresh workers and waits for its end (rank 0 only).

        Args:
            job: What to run.
            on_poll: Called about twice a second with the phase of each rank that is known.

        Returns:
            How the job ended. A failing job never raises.

        Raises:
            SessionInterrupted: The session was asked to stop; workers are being killed.
            SessionLost: A rank that the job needs is gone since an earlier job.
        """
        if not self.is_leader:
            raise RuntimeError("only rank 0 runs jobs; other ranks call follow()")
        members = choose_members(job.ranks, self._roster)
        self._pulse.check_interrupted()
        for rank, why in self.lost_ranks.items():
            if rank in members:
                raise SessionLost(f"job {job.name} needs rank {rank}, which is gone: {why}")
        began = time.monotonic()
        number, self._number = self._number, self._number + 1
        # Held open until the job has ended: its port cannot be stolen between choosing and binding.
        job_store = host_store(self.launch.master_addr, 0)
        order = Order(number, job, members, self.launch.master_addr, job_store.port)
        watch = JobWatch(order, self._board, self._pulse, self._roster, on_poll)
        try:
            self._attend()
            self._board.put(f"order/{number}", order.to_json())
            run, mine = self._work(order, watch.tick)
            ends = watch.gather(mine, run, self._attend)
            return self._conclude(order, run, ends, watch.timed_out, began)
        except BaseException as error:
            self._abandon(order, error)
            raise
        finally:
            self._interrupts.rest()
            del job_store

    def follow(self) -> None:
        """Runs what the leader orders until it ends the session (ranks other than 0).

        Raises:
            SessionInterrupted: This rank was asked to stop.
            SessionLost: The leader is gone.
        """
        if self.is_leader:
            raise RuntimeError("rank 0 leads; it calls run()")
        try:
            while (order := self._next_order()) is not None:
                if self.launch.rank in order.members:
                    self._obey(order)
        finally:
            self._interrupts.rest()

    def _attend(self) -> None:
        """Raises when this rank must stop: asked to, or cut off from the leader."""
        self._interrupts.check()
        self._pulse.check_store()
        if self.is_leader:
            self._pulse.check_interrupted()
        elif self.lost_ranks:
            raise SessionLost(f"rank 0 is gone: {'; '.join(self.lost_ranks.values())}")

    def _next_order(self) -> Order | None:
        text = self._board.wait(f"order/{self._number}", float("inf"), self._attend)
        self._number += 1
        fields = json.loads(text)
        self._ended = "end" in fields
        return None if self._ended else Order.from_json(text)

    def _work(self, order: Order, tick: Callable[[RankRun], None]) -> tuple[RankRun, RankEnd]:
        """Runs this rank's worker to its end, and tells the others at once if it failed."""
        run = self._start_worker(order)
        abort = None
        while not run.ended:
            self._attend()
            tick(run)
            if abort is None and (abort := read_abort(self._board, order)) is not None:
                self._heed(abort, run)
            run.poll(_POLL_S)
            if self._own_server is not None and (why := self._own_server.why_dead()):
                run.abandon(why)
        run.settle(self._attend)
        self._remark(run.remark)
        end = run.end()
        if end.status not in ("ok", "stopped"):
            claim_abort(self._board, order, "failure", end.rank, end.reason)
        return run, end

    def _start_worker(self, order: Order) -> RankRun:
        if self._run is not None:
            self._run.close(self._limits.close_s)
        if self._own_server is not None:
            self._own_server.ensure_running()
        info = describe_rank(order, self._me, self._roster, self.launch)
        env = worker_environment(os.environ, order, info)
        job_dir = self._folder(order) / "job"
        server = Path(self._roster.server_for(self._me))
        self._run = RankRun(order, self.launch.rank, info, env, server, job_dir, self._limits)
        self._pulse.attend_to(order.number, job_dir)
        return self._run

    def _heed(self, abort: dict, run: RankRun) -> None:
        if abort["kind"] == "timeout":
            run.stop(f"stopped at the time limit: {abort['why']}", dump=True)
        elif abort["kind"] == "interrupted":
            run.stop(abort["why"], dump=False)
        else:
            why = f"stopped because rank {abort['rank']} had failed"
            run.stop_after(self._limits.grace_s, why, dump=True)

    def _obey(self, order: Order) -> None:
        run, end = self._work(order, lambda run: None)
        self._board.put(f"end/{order.number}/{end.rank}", end.to_json())

        handover.hand_over(self._board, order, end.rank, run.job_dir, self._limits, self._attend)
        shutil.rmtree(self._folder(order), ignore_errors=True)

    def _conclude(self, order: Order, run: RankRun, ends: list[RankEnd], timed_out: bool, began: float) -> JobEnd:
        files = self._folder(order) / "files"
        collector = handover.Collector(self._board, self._limits, self._attend, self._pulse.lost)
        ends = [collector.collect(order, end, run.job_dir, files) for end in ends]
        shutil.rmtree(run.job_dir, ignore_errors=True)
        # The order stays: a rank that has no part in it may not have seen it yet.
        for key in (f"abort/{order.number}", *(f"end/{order.number}/{rank}" for rank in order.members)):
            self._board.remove(key)
        verdict = judge_job(ends, order.job.timeout_s if timed_out else None)
        shown = next((end for end in ends if end.rank == verdict.failing_rank), ends[0])
        return JobEnd(
            name=order.job.name,
            status=verdict.status,
            reason=verdict.reason,
            failing_rank=verdict.failing_rank,
            log_tail=shown.log_tail,
            ranks=tuple(ends),
            files=files,
            wall_s=time.monotonic() - began,
        )

    def _abandon(self, order: Order, error: BaseException) -> None:
        """Makes all ranks drop a job whose `run` is being left by an exception; does not wait."""
        if self._run is not None:
            self._run.stop("the session was interrupted", dump=False)
        text = json.dumps({"kind": "interrupted", "rank": 0, "why": f"{type(error).__name__}: {error}"})
        try:
            self._board.put(f"abort/{order.number}", text)
        except SessionLost as lost:
            logger.warning("cannot tell the other ranks to stop: %s", lost)

    def _say_goodbye(self, error: BaseException | None) -> None:
        if self.is_leader:
            self._board.put(f"order/{self._number}", json.dumps({"end": str(error or "")}))
        else:
            leave(self._board, self.launch.rank, self._ended, self._interrupts.signum, error)
        if self._run is not None:
            self._run.close(self._limits.close_s)
        if self.is_leader:
            others = [rank for rank in range(1, self.world_size) if rank not in self.lost_ranks]
            silent = await_leaving(self._board, others, self._limits.close_s)
            if silent:
                logger.warning("ranks %s did not say goodbye within %g s", silent, self._limits.close_s)

    def _remark(self, remark: str) -> None:
        """Logs what is odd about the node server, once."""
        if remark and remark not in self._remarks:
            self._remarks.add(remark)
            logger.warning("rank %d: %s", self.launch.rank, remark)

    def _folder(self, order: Order) -> Path:
        return self._home / f"{order.number:04d}-{order.job.name}"

    def _release(self) -> None:
        """Gives everything back; must not fail, since it runs on the way out of any error."""
        if self._pulse is not None:
            self._pulse.stop()
        if self._own_server is not None:
            self._own_server.close(self._limits.close_s)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        self._interrupts.uninstall()
