"""Jobs for the planner's tests, and where shared data lie."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.planner.job import Job, ZeroOptions
from bench.spec.case import Case
from bench.spec.models import ModelShape, shape_of

ROOT = Path(__file__).resolve().parents[3]
SMALL = ModelShape("small", 256, 6, 8, 4, 32, 640, 2000, False, True, False, "test")
BUCKETS = ZeroOptions(reduce_bucket=50_000_000, prefetch_bucket=50_000_000)


def shared(name: str) -> Path:
    """A file of the data kept beside the checkout; skips where it is absent."""
    folder = Path(os.environ.get("FTBENCH_SHARED", ROOT.parent / "shared")) / "data"
    if not (folder / name).is_file():
        pytest.skip(f"no {name} in {folder}; set FTBENCH_SHARED to the folder that holds data/")
    return folder / name


def job(**fields: object) -> Job:
    """A small job; fields replace."""
    base = Job(shape=SMALL, tuning="full", micro_batch=2, seq_len=128, world_size=8, zero_stage=3)
    if fields.get("tuning") == "lora":
        base = replace(base, lora_rank=8, targets=("all-linear",))
    return replace(base, **fields)


def big(tuning: str, seq_len: int, **fields: object) -> Job:
    """Qwen2.5-32B on eight ranks as in the suite's known points: plain AdamW, checkpointing."""
    adapters = {"lora_rank": 16, "targets": ("all-linear",)} if tuning == "lora" else {}
    options = {"world_size": 8, "zero_stage": 3, "gradient_checkpointing": True, "zero": BUCKETS, "optimizer": "plain"}
    return Job(
        shape=shape_of("Qwen/Qwen2.5-32B"), tuning=tuning, micro_batch=1, seq_len=seq_len,
        **{**options, **adapters, **fields},
    )  # fmt: skip


def case(**fields: object) -> Case:
    """A case of Qwen2.5-32B; fields replace."""
    base = {
        "id": "x", "model": "Qwen/Qwen2.5-32B", "tuning": "full", "learning_rate": 1e-5, "steps": 10, "data": "none",
        "global_batch_size": 64, "micro_batch_size": 1, "seq_len": 2048, "zero_stage": 3,
        "gradient_checkpointing": True,
    }  # fmt: skip
    return Case.model_validate({**base, **fields})
