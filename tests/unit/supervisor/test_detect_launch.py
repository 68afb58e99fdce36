"""Each launcher's environment becomes the same kind of Launch."""

from __future__ import annotations

import pytest

from bench.errors import LaunchError
from bench.supervisor.launch import Launch, detect_launch

_MASTER = {"MASTER_ADDR": "node-1", "MASTER_PORT": "1234"}


def test_nothing_is_a_single_process() -> None:
    assert detect_launch({}) == Launch(0, 1, 0, 1, 0, "127.0.0.1", 29500, "none")


def test_deepspeed() -> None:
    environ = {**_MASTER, "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_SIZE": "8"}
    launch = detect_launch({**environ, "CROSS_RANK": "1", "CROSS_SIZE": "2"})
    assert launch == Launch(9, 16, 1, 8, 1, "node-1", 1234, "deepspeed")


def test_torchrun_keeps_restarts_apart() -> None:
    environ = {**_MASTER, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    environ |= {"GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2"}
    launch = detect_launch(environ)
    assert launch == Launch(3, 4, 1, 2, 1, "node-1", 1234, "torchrun", attempt="abc.2")


_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_mpirun_agrees_on_an_address_when_none_is_given() -> None:
    asked = []
    launch = detect_launch(_MPI, agree=lambda first: asked.append(first) or ("10.0.0.1", 4711))
    assert asked == [False]
    assert launch == Launch(3, 4, 1, 2, None, "10.0.0.1", 4711, "mpirun")


def test_mpirun_with_a_given_address_needs_no_mpi() -> None:
    def refuse(first: bool) -> tuple[str, int]:
        raise AssertionError("MPI was asked")

    assert detect_launch({**_MPI, **_MASTER}, agree=refuse).master_port == 1234


_SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"}


def test_slurm() -> None:
    launch = detect_launch({**_SLURM, **_MASTER, "SLURM_TASKS_PER_NODE": "4,3"})
    assert launch == Launch(5, 7, 1, 3, 1, "node-1", 1234, "slurm")
    same = detect_launch({**_SLURM, **_MASTER, "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"})
    assert same.local_world_size == 4


def test_slurm_without_an_address_says_how_to_get_one() -> None:
    with pytest.raises(LaunchError, match="scontrol show hostnames"):
        detect_launch(_SLURM)


def test_batch_script_without_srun_is_a_single_process() -> None:
    assert detect_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}).world_size == 1


def test_torchrun_under_srun_is_torchrun() -> None:
    environ = {**_SLURM, **_MASTER, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert detect_launch({**environ, "TORCHELASTIC_RUN_ID": "x"}).launcher == "torchrun"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"WORLD_SIZE": None}, "no WORLD_SIZE"),
        ({"RANK": "one"}, "RANK='one'"),
        ({"RANK": "2"}, "rank 2 of 2: expected a rank from 0 to 1"),
        ({"LOCAL_RANK": "5"}, "local rank 5 of 2"),
        ({"MASTER_PORT": "99999"}, "master port 99999"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
    ],
)
def test_contradictions_are_named(change: dict[str, str | None], says: str) -> None:
    environ = {**_MASTER, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", **change}
    with pytest.raises(LaunchError, match=says):
        detect_launch({key: value for key, value in environ.items() if value is not None})
