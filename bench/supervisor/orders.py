"""What rank 0 publishes for each job, and what a worker's environment is made of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.supervisor.contract import Job
from bench.supervisor.launch import Launch
from bench.supervisor.meeting import Roster, Seat

_LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "TORCHELASTIC_", "GROUP_", "ROLE_", "CROSS_", "FTBENCH_NODE_")
"""A worker that initialised MPI with its supervisor's identity would hang or kill the launch."""


@dataclass(frozen=True)
class Order:
    """One job as all ranks hear of it."""

    number: int
    """Counts the session's jobs."""
    job: Job
    """What to run."""
    members: tuple[int, ...]
    """Session ranks that run a worker, in the order of the job's own ranks."""
    address: str
    """Where the job's own store is."""
    port: int
    """Port of that store, which is already open: nobody can take it."""

    def to_json(self) -> str:
        """Returns the order as JSON."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Order:
        """Reads what `to_json` wrote."""
        fields = json.loads(text)
        fields["job"], fields["members"] = Job(**fields["job"]), tuple(fields["members"])
        return cls(**fields)


def choose_members(ranks: str, roster: Roster) -> tuple[int, ...]:
    """Returns the session ranks that take part in a job."""
    if ranks == "rank0":
        return (0,)
    if ranks == "one_per_node":
        return tuple(seat.rank for seat in roster.seats if seat.local_rank == 0)
    return tuple(seat.rank for seat in roster.seats)


def describe_rank(order: Order, seat: Seat, roster: Roster, launch: Launch) -> dict[str, Any]:
    """Returns the `rank_info` of job.json: this worker's place among the job's workers."""
    local = [mate.rank for mate in roster.mates(seat) if mate.rank in order.members]
    nodes = sorted({other.node for other in roster.seats if other.rank in order.members})
    return {
        "rank": order.members.index(seat.rank),
        "world_size": len(order.members),
        # With all ranks present the launcher's own numbering holds: it chose the devices by it.
        "local_rank": seat.local_rank if order.job.ranks == "all" else local.index(seat.rank),
        "local_world_size": len(local),
        "node_rank": nodes.index(seat.node),
        "node_count": len(nodes),
        "host": seat.host,
        "launcher": launch.launcher,
        "job": order.job.name,
        "session": roster.session,
    }


def worker_environment(environ: Mapping[str, str], order: Order, info: Mapping[str, Any]) -> dict[str, str]:
    """Returns a worker's environment: its supervisor's, without the launcher's identity, plus its own rank."""
    kept = {key: value for key, value in environ.items() if not key.startswith(_LAUNCHER_PREFIXES)}
    cores = len(os.sched_getaffinity(0))
    # torchrun sets 1, deepspeed and mpirun nothing, which would give every rank all cores.
    kept.setdefault("OMP_NUM_THREADS", str(max(1, cores // info["local_world_size"])))
    # The ninja that compiles extensions must be the interpreter's own, or their cache is not reused.
    binaries = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([binaries, kept.get("PATH", os.defpath)])
    return {
        **kept,
        **order.job.env,
        "RANK": str(info["rank"]),
        "WORLD_SIZE": str(info["world_size"]),
        "LOCAL_RANK": str(info["local_rank"]),
        "LOCAL_WORLD_SIZE": str(info["local_world_size"]),
        "LOCAL_SIZE": str(info["local_world_size"]),
        "MASTER_ADDR": order.address,
        "MASTER_PORT": str(order.port),
        # The store at that address is the supervisor's: every worker joins it as a client.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
