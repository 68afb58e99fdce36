"""The memory pass against a count of every allocation that torch's CPU allocator makes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer

from bench.spec.case import Case
from bench.spec.paths import ROOT
from bench.worker.batches import Feed, global_loss_tokens, train_loader
from bench.worker.data import build_dataset
from bench.worker.device import Device
from bench.worker.engines.ddp import DdpEngine
from bench.worker.memory_pass import trace_memory
from bench.worker.parallel.build import build
from bench.worker.parallel.mesh import build_mesh

CPU = Device(torch.device("cpu"), "cpu")
FIELDS = {
    "id": "a", "model": "bench/assets/tiny", "data": "bench/assets/tiny/task.jsonl", "learning_rate": 1e-3, "steps": 4,
    "engine": "ddp", "global_batch_size": 16, "micro_batch_size": 8, "seq_len": 64, "memory_steps": 1,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ.update(RANK="0", WORLD_SIZE="1")
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def allocator_peak(work) -> int:
    """Highest sum of the CPU allocator's events above its level at the start, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    level = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_tally_sees_what_the_allocator_sees(tuning: str, precision: str, checkpointing: bool) -> None:
    fields = {"tuning": tuning, "precision": precision, "gradient_checkpointing": checkpointing}
    case = Case.model_validate({**FIELDS, **fields})
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny")
    data = build_dataset(case, tokenizer)
    mesh = build_mesh(case)
    built = build(case, CPU, None, mesh)
    engine, counts = DdpEngine(case, built, CPU, mesh), built.parameters
    tokens = global_loss_tokens(case, data.train)

    def feed() -> Feed:
        return Feed(iter(train_loader(case, data.train, tokenizer.pad_token_id, 0, 1)), CPU.torch)

    for _ in range(2):  # optimizer state and DDP's final buckets exist from here on
        engine.train_batch(feed(), tokens[0], 1e-3)
    above_steady = allocator_peak(lambda: engine.train_batch(feed(), tokens[0], 0.0))
    traced = trace_memory(engine, case, feed(), tokens, built.dims.vocab)
    steady = traced.phases["steady"]
    assert traced.peak_bytes - steady.peak_bytes == pytest.approx(above_steady, rel=0.01)
    width = 4 if precision == "fp32" else 2
    assert steady.by_category["weights"] >= width * counts.total
    assert steady.by_category["optimizer_state"] == pytest.approx(8 * counts.trainable, rel=0.001)
    assert steady.by_category.get("master_weights", 0) == (4 * counts.trainable if precision == "bf16" else 0)
    assert steady.by_category["gradients"] == pytest.approx(width * counts.trainable, rel=0.001)
    if checkpointing:
        assert max(traced.phases.items(), key=lambda item: item[1].peak_bytes)[0] in ("backward", "forward", "step")


def test_hooks_and_wrappers_are_gone_afterwards() -> None:
    case = Case.model_validate({**FIELDS, "tuning": "full", "precision": "fp32"})
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny")
    data = build_dataset(case, tokenizer)
    mesh = build_mesh(case)
    built = build(case, CPU, None, mesh)
    engine, model = DdpEngine(case, built, CPU, mesh), built.model
    before = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    loader = train_loader(case, data.train, tokenizer.pad_token_id, 0, 1)
    trace_memory(engine, case, Feed(iter(loader), CPU.torch), global_loss_tokens(case, data.train), built.dims.vocab)
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == before
