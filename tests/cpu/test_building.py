"""While a rank builds its part of a model, it never holds more than that part and one whole parameter.

The process group is torch's fake one: it knows ranks and moves nothing, and building asks for nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.spec.case import Case
from bench.spec.paths import ROOT
from bench.worker.device import Device
from bench.worker.parallel.build import Built, build
from bench.worker.parallel.mesh import Mesh, build_mesh

from .test_tally import allocator_peak

CPU = Device(torch.device("cpu"), "cpu")
SMALL_BYTES = 4096
"""Rotary tables, and scalars that building makes."""
FIELDS = {
    "id": "a", "model": "bench/assets/tiny", "data": "none", "learning_rate": 1e-3, "steps": 4, "zero_stage": 1,
    "global_batch_size": 16, "micro_batch_size": 2, "seq_len": 64,
}  # fmt: skip
PLACES = {
    "tensor": ({"tp_size": 4}, 4, 1),
    "first stage": ({"pp_size": 4}, 4, 0),
    "inner stage": ({"pp_size": 4}, 4, 1),
    "last stage, tensor": ({"tp_size": 2, "pp_size": 2}, 8, 7),
}


@contextmanager
def placed(case: Case, world_size: int, rank: int) -> Iterator[Mesh]:
    """The mesh of one rank of a world that is not there."""
    import deepspeed

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        deepspeed.init_distributed(dist_backend="fake", verbose=False)
        yield build_mesh(case)
    finally:
        dist.destroy_process_group()


def built_with_peak(case: Case, world_size: int, rank: int) -> tuple[Built, int]:
    """One rank's part, and the most bytes that the allocator gave out while it was built."""
    made: list[Built] = []
    with placed(case, world_size, rank) as mesh:
        gc.collect()  # what an earlier test left must not be freed while this one counts
        peak = allocator_peak(lambda: made.append(build(case, CPU, None, mesh)))
    return made[0], peak


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("weights", "tuning"), [("random", "full"), ("pretrained", "lora")])
def test_building_holds_the_part_and_one_whole_parameter(place: str, weights: str, tuning: str) -> None:
    axes, world_size, rank = PLACES[place]
    case = Case.model_validate({**FIELDS, **axes, "weights": weights, "tuning": tuning, "precision": "bf16"})
    built, peak = built_with_peak(case, world_size, rank)
    parameters = {id(p): p for p in built.model.parameters()}.values()
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in parameters), "views would keep what they are cut from"
    part, whole = sum(p.nbytes for p in parameters), sum(p.nbytes for p in built.whole)
    assert part < 0.4 * whole, "the bound would say nothing"
    if weights == "random":
        beside = max(p.nbytes for p in built.whole)
    else:
        # Counted as given out, but these are pages of the file, mapped and read in slices.
        beside = (ROOT / case.model / "model.safetensors").stat().st_size
    assert part < peak <= part + beside + SMALL_BYTES
