"""A rank's place in the mesh of pipeline, data, sequence and tensor axes, and the groups along them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from bench.spec.case import Case

ORDER = ("pp", "dp", "sp", "tp")
"""From the slowest changing axis to the fastest: neighbours talk most along tp, least along pp."""


@dataclass(frozen=True)
class Mesh:
    """Sizes and coordinates of the axes. `grid` is what DeepSpeed calls an mpu; None without tp and pp."""

    sizes: dict[str, int]
    coordinates: dict[str, int]
    grid: Any = None

    def rank_at(self, **coordinates: int) -> int:
        """Global rank of a place; axes that are not named are at this rank's own coordinates."""
        place = {**self.coordinates, **coordinates}
        rank = 0
        for axis in ORDER:
            rank = rank * self.sizes[axis] + place[axis]
        return rank

    @property
    def reports(self) -> bool:
        """This rank speaks for its model replica: it sees the logits, and no other of the replica counts."""
        here = self.coordinates
        return here["tp"] == 0 and here["sp"] == 0 and here["pp"] == self.sizes["pp"] - 1

    @property
    def tp_group(self) -> Any:
        """Ranks that hold shards of the same layers."""
        return self.grid.get_slice_parallel_group()

    @property
    def dp_group(self) -> Any:
        """Ranks that hold the same shards of the same stage."""
        return self.grid.get_data_parallel_group()

    @property
    def pp_group(self) -> Any:
        """Ranks that hold the stages of one replica."""
        return self.grid.get_pipe_parallel_group()


def coordinates(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """Coordinates of a rank, by axis."""
    place = {}
    for axis in reversed(ORDER):
        rank, place[axis] = divmod(rank, sizes[axis])
    return place


def build_mesh(case: Case) -> Mesh:
    """Place this rank, and make the process groups of its axes (all ranks must call)."""
    world_size = dist.get_world_size()
    sizes = {"dp": case.dp_size(world_size), **case.model_axes}
    grid = None
    if case.tp_size > 1 or case.pp_size > 1:
        from deepspeed.runtime.pipe.topology import PipelineParallelGrid

        grid = PipelineParallelGrid(topology(sizes))
    return Mesh(sizes, coordinates(dist.get_rank(), sizes), grid)


def topology(sizes: dict[str, int]) -> Any:
    """DeepSpeed's description of the same mesh; its axes are named pipe, data and model, in our order."""
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    return PipeModelDataParallelTopology(num_pp=sizes["pp"], num_mp=sizes["tp"], num_dp=sizes["dp"])
