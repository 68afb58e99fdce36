"""One rehearsal: build, step once, and trace the next step, on one rank."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from bench.records.memory import HOST, MemoryPass
from bench.spec import ds_config
from bench.spec.case import Case
from bench.spec.models import shape_of
from bench.worker.batches import Batch, Feed
from bench.worker.device import Device
from bench.worker.engines.build import build_engine
from bench.worker.engines.ddp import DdpEngine
from bench.worker.memory_pass import trace_memory
from bench.worker.parallel.build import build
from bench.worker.parallel.mesh import build_mesh
from bench.worker.rehearsal import stage

_STEPPED = ("master_weights", "optimizer_state")
LOSS_TOKENS = 1
"""Any number: it scales values, and there are none."""


def rehearse(case: Case, world_size: int, rank: int) -> MemoryPass:
    """Play one rank of a case, every sample `seq_len` tokens long.

    Args:
        case: the case.
        world_size: ranks over all nodes.
        rank: which of them.

    Returns:
        What the memory pass of this rank would report: bytes by category at the peak of each phase. Under
        offload the category `host` lies in host memory and is in no peak.

    Raises:
        UnsupportedCase, SpecError: as the run itself would.
    """
    shape = shape_of(case.model, case.model_overrides)
    with tempfile.TemporaryDirectory(prefix="ftbench-rehearsal-") as folder:
        config = {**shape.config, "max_position_embeddings": max(case.seq_len, 2)}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        known = {"model": folder, "weights": "random", "model_overrides": {}}
        return _play(case.model_copy(update=known), world_size, rank, shape.hidden)


def _play(case: Case, world_size: int, rank: int, hidden: int) -> MemoryPass:
    stage.join_fake_world(rank, world_size)
    stage.stand_in(case, hidden)
    device, pinned = Device(torch.device("cpu"), "rehearsal"), stage.watch_pinned()
    config = ds_config.resolve(case, world_size) if case.engine == "deepspeed" else None
    with stage.FakeTensors():
        mesh = build_mesh(case)
        built = build(case, device, config, mesh)
        engine = build_engine(case, built, device, mesh, config)
        stage.agree_on_traces()
        if isinstance(engine, DdpEngine):
            stage.pretend_all_reduce(engine.ddp)
        if case.offload_optimizer == "cpu":
            engine.memory_roles = _with_host(engine.memory_roles, pinned)
        feed = Feed(_batches(case), device.torch)
        engine.train_batch(feed, LOSS_TOKENS, case.learning_rate)
        return trace_memory(engine, case, feed, [LOSS_TOKENS] * case.memory_steps, built.dims.vocab)


def _with_host(
    roles: Callable[[], Iterator[tuple[str, torch.Tensor]]], pinned: list[StorageWeakRef]
) -> Callable[[], Iterator[tuple[str, torch.Tensor]]]:
    """Roles of an engine that steps on the host: master weights, moments, and whatever is pinned lie there."""

    def split() -> Iterator[tuple[str, torch.Tensor]]:
        there = {storage.cdata for storage in pinned if not storage.expired()}
        for role, tensor in roles():
            host = role in _STEPPED or tensor.untyped_storage()._cdata in there
            yield HOST if host else role, tensor

    return split


def _batches(case: Case) -> Iterator[Batch]:
    """Full micro-batches without end."""
    shape, tokens = (case.micro_batch_size, case.seq_len), case.micro_batch_size * case.seq_len
    while True:
        ids = torch.zeros(shape, dtype=torch.long)
        yield Batch(ids, torch.zeros_like(ids), tuple(range(case.micro_batch_size)), tokens, tokens)
