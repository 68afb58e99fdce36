"""How the ranks find each other: everyone says hello, rank 0 publishes who sits where."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.errors import LaunchError
from bench.supervisor.board import Attend, Board
from bench.supervisor.hostcheck import NodeRanks, own_addresses
from bench.supervisor.launch import Launch
from bench.supervisor.processes import own_key, pid_namespace


@dataclass(frozen=True)
class Seat:
    """One rank as the others know it."""

    rank: int
    """Rank in the session."""
    host: str
    """Name of its machine."""
    node: int
    """Number of its node, from 0 in rank order; -1 before rank 0 has counted."""
    local_rank: int
    """Rank within the node."""
    node_rank: int | None
    """The launcher's number for the node, if it gave one."""
    addresses: tuple[str, ...]
    """IP addresses of its machine."""
    pid: int
    """Process id of its supervisor."""
    started: str
    """Start time of that process, which together with the pid is unique."""
    pid_space: str
    """Where the pid means something."""
    server: str
    """Socket of its node server; empty unless it started one."""


@dataclass(frozen=True)
class Roster:
    """All ranks of a session."""

    session: str
    """A name for this session, unique."""
    seats: tuple[Seat, ...]
    """One per rank, in order."""

    def nodes(self) -> tuple[NodeRanks, ...]:
        """Returns the nodes in rank order with their numbers of ranks."""
        groups: dict[int, list[Seat]] = {}
        for seat in self.seats:
            groups.setdefault(seat.node, []).append(seat)
        return tuple(NodeRanks(group[0].host, len(group), group[0].addresses) for group in groups.values())

    def mates(self, seat: Seat) -> tuple[Seat, ...]:
        """Returns the ranks of a rank's node."""
        return tuple(other for other in self.seats if other.node == seat.node)

    def server_for(self, seat: Seat) -> str:
        """Returns the socket of the node server that a rank uses."""
        return seat.server or next(other.server for other in self.mates(seat) if other.local_rank == 0)


def meet(board: Board, launch: Launch, server: str, limit_s: float, attend: Attend) -> Roster:
    """Says hello and waits for all others.

    Args:
        board: The session's board.
        launch: This rank.
        server: Socket of the node server that this rank started or was given, or an empty string.
        limit_s: How long to wait for the others.
        attend: Called while waiting.

    Raises:
        LaunchError: Ranks are missing, there are two of one rank, or a node has no local rank 0.
    """
    hello = _own_seat(launch, server)
    if not board.claim(f"hello/{launch.rank}", json.dumps(asdict(hello))):
        raise LaunchError(
            f"there is already a rank {launch.rank} at {launch.master_addr}:{launch.master_port}: another "
            "launch uses this port; choose another with `--master_port N`"
        )
    if launch.rank == 0:
        seats = _collect(board, launch, limit_s, attend)
        roster = Roster(uuid.uuid4().hex[:12], _number_nodes(seats))
        board.put("roster", json.dumps(asdict(roster)))
        return roster
    text = board.wait("roster", limit_s, attend)
    if text is None:
        raise LaunchError(f"rank {launch.rank} waited {limit_s:g} s for rank 0 to gather all {launch.world_size} ranks")
    fields = json.loads(text)
    return Roster(fields["session"], tuple(_read_seat(seat) for seat in fields["seats"]))


def _own_seat(launch: Launch, server: str) -> Seat:
    key = own_key()
    return Seat(
        rank=launch.rank,
        host=socket.gethostname(),
        node=-1,
        local_rank=launch.local_rank,
        node_rank=launch.node_rank,
        addresses=own_addresses(),
        pid=os.getpid(),
        started=key.started,
        pid_space=pid_namespace(),
        server=server,
    )


def _read_seat(fields: dict) -> Seat:
    return Seat(**{**fields, "addresses": tuple(fields["addresses"])})


def _collect(board: Board, launch: Launch, limit_s: float, attend: Attend) -> list[Seat]:
    seats: dict[int, Seat] = {}
    deadline = time.monotonic() + limit_s
    while len(seats) < launch.world_size:
        attend()
        missing = [rank for rank in range(launch.world_size) if rank not in seats]
        for rank in missing:
            hello = board.peek(f"hello/{rank}")
            if hello is not None:
                seats[rank] = _read_seat(json.loads(hello))
        if time.monotonic() > deadline:
            shown = ", ".join(map(str, missing[:16])) + (" …" if len(missing) > 16 else "")
            raise LaunchError(f"after {limit_s:g} s {len(missing)} of {launch.world_size} ranks are missing: {shown}")
        time.sleep(0.02)
    return [seats[rank] for rank in range(launch.world_size)]


def _number_nodes(seats: Sequence[Seat]) -> tuple[Seat, ...]:
    numbers: dict[object, int] = {}
    counted = []
    for seat in seats:
        key = seat.host if seat.node_rank is None else seat.node_rank
        counted.append(Seat(**{**asdict(seat), "node": numbers.setdefault(key, len(numbers))}))
    for number in numbers.values():
        firsts = [seat for seat in counted if seat.node == number and seat.local_rank == 0]
        if len(firsts) != 1:
            host = next(seat.host for seat in counted if seat.node == number)
            raise LaunchError(
                f"node {number} ({host}) has {len(firsts)} ranks with local rank 0: expected one; "
                "do two machines have the same host name?"
            )
    return tuple(counted)


def leave(board: Board, rank: int, ended: bool, signum: int | None, error: BaseException | None) -> None:
    """Says goodbye on a rank other than 0.

    Args:
        board: The session's board.
        rank: This rank.
        ended: The leader had ended the session; otherwise this rank leaves early.
        signum: The signal that asked this rank to stop, if any.
        error: The exception it leaves with, if any.
    """
    if ended:
        board.put(f"bye/{rank}", "1")
        return
    why = f"its supervisor left: {error or 'before the end of the session'}"
    board.put(f"gone/{rank}", json.dumps({"signum": signum, "why": why}))


def await_leaving(board: Board, ranks: Sequence[int], limit_s: float) -> list[int]:
    """Waits on rank 0 until the others need its store no more; returns those that said nothing."""
    waiting = list(ranks)
    deadline = time.monotonic() + limit_s
    while waiting and time.monotonic() < deadline:
        waiting = [r for r in waiting if board.peek(f"bye/{r}") is None and board.peek(f"gone/{r}") is None]
        time.sleep(0.02 if waiting else 0.0)
    return waiting
