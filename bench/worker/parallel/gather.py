"""Bringing whole parameters to rank 0 from the stage and the tensor-parallel ranks that hold them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from bench.worker.parallel.build import WholeParameter
from bench.worker.parallel.mesh import Mesh
from bench.worker.parallel.tensor import assemble


def hand_over(entry: WholeParameter, parameter: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """On the ranks of the stage that owns a parameter: put it together and give it to rank 0.

    Args:
        entry: what it is part of.
        parameter: this rank's part, not sharded by ZeRO at this moment.
        mesh: this rank's place.

    Returns:
        The whole parameter on the host of rank 0, an empty tensor elsewhere.
    """
    if mesh.coordinates["dp"] == 0:
        tensor = assemble(parameter, mesh)
        giver = mesh.rank_at(pp=entry.stage, dp=0, sp=0, tp=0)
        if dist.get_rank() == 0:
            return tensor.to("cpu", copy=True)
        if dist.get_rank() == giver:
            dist.send(tensor.contiguous(), 0)
    return torch.empty(0)


def receive(entry: WholeParameter, mesh: Mesh, device: torch.device) -> torch.Tensor:
    """On the ranks of other stages: rank 0 receives, the others have nothing to do."""
    if dist.get_rank() != 0:
        return torch.empty(0)
    tensor = torch.empty(entry.shape, dtype=entry.dtype, device=device)
    dist.recv(tensor, mesh.rank_at(pp=entry.stage, dp=0, sp=0, tp=0))
    return tensor.cpu()
