"""Who started this process, and as which rank."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.errors import LaunchError
from bench.supervisor.hostcheck import check_hostfile, find_deepspeed

__all__ = ["Launch", "check_hostfile", "detect_launch"]

DEFAULT_PORT = 29500
"""What deepspeed and torchrun take as well when no port is given."""


@dataclass(frozen=True)
class Launch:
    """This process's place among the ranks."""

    rank: int
    """Rank in the session, from 0."""
    world_size: int
    """Number of ranks."""
    local_rank: int
    """Rank within the node: the number of the device to use."""
    local_world_size: int
    """Ranks on this node."""
    node_rank: int | None
    """Number of the node, or None where the launcher does not tell (mpirun, plain environment)."""
    master_addr: str
    """Where rank 0 can be reached."""
    master_port: int
    """Port of the session's store (torchrun: of the agent's store)."""
    launcher: str
    """deepspeed, torchrun, mpirun, slurm or none."""
    hostfile: str | None = None
    """Absolute path given to `deepspeed --hostfile`, as far as this node can see it."""
    attempt: str = ""
    """torchrun only: run id and restart count, so that a restart does not read its predecessor's keys."""


Agree = Callable[[bool], tuple[str, int]]
"""Called on all ranks with "am I rank 0"; returns rank 0's address and a port that is free there."""


def detect_launch(environ: Mapping[str, str], agree: Agree | None = None) -> Launch:
    """Reads the launcher's environment variables.

    Args:
        environ: Usually `os.environ`.
        agree: How mpirun's ranks agree on an address; through mpi4py when not given.

    Raises:
        LaunchError: A variable is missing, not a number, or contradicts another.
    """
    env = _Variables(environ)
    # The order matters: torchrun under srun has SLURM_* too, deepspeed under mpirun has OMPI_* too.
    if "OMPI_COMM_WORLD_RANK" in environ and "TORCHELASTIC_RUN_ID" not in environ:
        launch = _from_mpirun(env, agree or _agree_through_mpi)
    elif "RANK" in environ:
        launch = _from_rank_variables(env)
    elif "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
        launch = _from_slurm(env)
    else:
        launch = Launch(0, 1, 0, 1, 0, "127.0.0.1", env.number("MASTER_PORT", DEFAULT_PORT), "none")
    _validate(launch)
    return launch


class _Variables:
    """Numbers from an environment, with errors that name the variable."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def number(self, name: str, default: int | None = None) -> int:
        text = self.environ.get(name)
        if text is None:
            if default is None:
                raise LaunchError(f"the environment has no {name}, although the launcher's other variables are there")
            return default
        if not re.fullmatch(r"\d+", text.strip()):
            raise LaunchError(f"{name}={text!r}: expected a whole number from 0")
        return int(text)


def _from_rank_variables(env: _Variables) -> Launch:
    environ = env.environ
    rank, world_size = env.number("RANK"), env.number("WORLD_SIZE")
    launcher, hostfile, attempt, node_rank = "none", None, "", None
    local_world_size = env.number("LOCAL_WORLD_SIZE", env.number("LOCAL_SIZE", world_size))
    if "TORCHELASTIC_RUN_ID" in environ:
        launcher, node_rank = "torchrun", env.number("GROUP_RANK", 0)
        attempt = f"{environ['TORCHELASTIC_RUN_ID']}.{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    elif "CROSS_RANK" in environ and "LOCAL_SIZE" in environ:
        launcher, node_rank = "deepspeed", env.number("CROSS_RANK")
        command = find_deepspeed()
        hostfile = command.hostfile if command else None
    if "MASTER_ADDR" not in environ and world_size > 1:
        raise LaunchError(f"WORLD_SIZE={world_size}, but MASTER_ADDR is not set: give the address of rank 0's node")
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=env.number("LOCAL_RANK", rank),
        local_world_size=local_world_size,
        node_rank=node_rank,
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=env.number("MASTER_PORT", DEFAULT_PORT),
        launcher=launcher,
        hostfile=hostfile,
        attempt=attempt,
    )


def _from_mpirun(env: _Variables, agree: Agree) -> Launch:
    rank, world_size = env.number("OMPI_COMM_WORLD_RANK"), env.number("OMPI_COMM_WORLD_SIZE")
    address, port = env.environ.get("MASTER_ADDR"), env.number("MASTER_PORT", DEFAULT_PORT)
    if address is None and world_size > 1:
        address, free_port = agree(rank == 0)
        port = port if "MASTER_PORT" in env.environ else free_port
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=env.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=env.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        node_rank=None,
        master_addr=address or "127.0.0.1",
        master_port=port,
        launcher="mpirun",
    )


def _from_slurm(env: _Variables) -> Launch:
    environ = env.environ
    rank, world_size = env.number("SLURM_PROCID"), env.number("SLURM_STEP_NUM_TASKS", env.number("SLURM_NTASKS", 1))
    if world_size > 1 and "MASTER_ADDR" not in environ:
        raise LaunchError(
            f"srun started {world_size} tasks, but MASTER_ADDR is not set: export the name of the first node, "
            "e.g. MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)"
        )
    node_rank = env.number("SLURM_NODEID", 0)
    per_node = _expand_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", ""))
    return Launch(
        rank=rank,
        world_size=world_size,
        local_rank=env.number("SLURM_LOCALID"),
        local_world_size=per_node[node_rank] if node_rank < len(per_node) else world_size,
        node_rank=node_rank,
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=env.number("MASTER_PORT", DEFAULT_PORT),
        launcher="slurm",
    )


def _expand_tasks(text: str) -> list[int]:
    """Expands Slurm's "4(x2),3" to [4, 4, 3]; unreadable text gives an empty list."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _agree_through_mpi(is_first: bool) -> tuple[str, int]:
    """Lets rank 0 tell all ranks its address and a free port, then leaves MPI again."""
    try:
        import mpi4py

        # Finalized by hand below: a worker killed later must not leave mpirun waiting for MPI's end.
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"mpirun gave no MASTER_ADDR and mpi4py cannot be used ({error}): "
            "add `-x MASTER_ADDR=HOST -x MASTER_PORT=N`"
        ) from error
    several = len(set(MPI.COMM_WORLD.allgather(socket.gethostname()))) > 1
    offer = (_own_address() if several else "127.0.0.1", _free_port()) if is_first else None
    address, port = MPI.COMM_WORLD.bcast(offer, root=0)
    MPI.Finalize()
    return address, port


def _own_address() -> str:
    """Returns the address of this machine that other nodes most likely reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only asks the kernel for the route.
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _validate(launch: Launch) -> None:
    if not 0 <= launch.rank < launch.world_size:
        last = launch.world_size - 1
        raise LaunchError(f"rank {launch.rank} of {launch.world_size}: expected a rank from 0 to {last}")
    if not 0 <= launch.local_rank < launch.local_world_size:
        raise LaunchError(
            f"rank {launch.rank}: local rank {launch.local_rank} of {launch.local_world_size}: "
            f"expected one from 0 to {launch.local_world_size - 1}"
        )
    if not 0 < launch.master_port < 65536:
        raise LaunchError(f"master port {launch.master_port}: expected 1 to 65535")
