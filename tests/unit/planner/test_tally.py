"""The closed form against exact tallies of the suite's own worker.

Recorded on CPU: rank 0 of 8 (fake process group), DeepSpeed 0.19.8, torch 2.13, transformers 5.24, two traced steps
after two warm ones, one sample of 256 tokens, plain AdamW, buckets of 50,000 elements. Qwen2 architecture, hidden
256, 4 layers, 4 heads and 2 KV heads of 64, MLP 640, vocabulary 1000, untied.
Full fine-tuning under ZeRO-2 is in `test_closed_form_measured`: rank 0 is not its fullest rank.
"""

from __future__ import annotations

import pytest

from bench.planner.job import job_of
from bench.planner.memory import fullest
from bench.spec.models import ModelShape, shape_of
from bench.spec.suite import load_suite
from tests.unit.planner.jobs import case

SHAPE = ModelShape("recorded", 256, 4, 4, 2, 64, 640, 1000, False, True, False, "test")
SMALL = {"zero_optimization.reduce_bucket_size": 50_000}
OVERRIDES = {
    0: {},
    1: {**SMALL, "zero_optimization.allgather_bucket_size": 50_000},
    2: {**SMALL, "zero_optimization.allgather_bucket_size": 50_000},
    3: {
        **SMALL,
        "zero_optimization.stage3_prefetch_bucket_size": 50_000,
        "zero_optimization.stage3_param_persistence_threshold": 0,
    },
}
RECORDED = [
    (3, "full", True, "bf16", 17357029),
    (3, "full", True, "fp32", 27906277),
    (3, "full", False, "bf16", 27865317),
    (3, "full", False, "fp32", 45378053),
    (3, "lora", True, "bf16", 11947825),
    (3, "lora", True, "fp32", 21812977),
    (3, "lora", False, "bf16", 20483377),
    (3, "lora", False, "fp32", 35565585),
    (2, "lora", True, "bf16", 11143276),
    (2, "lora", True, "fp32", 21272492),
    (2, "lora", False, "bf16", 20270156),
    (2, "lora", False, "fp32", 35139148),
    (1, "full", True, "bf16", 19964384),
    (1, "full", True, "fp32", 34226464),
    (1, "full", False, "bf16", 26130880),
    (1, "full", False, "fp32", 41909184),
    (0, "full", True, "bf16", 68085204),
    (0, "full", True, "fp32", 65381852),
    (0, "lora", True, "bf16", 12464416),
    (0, "lora", False, "fp32", 36071204),
]
"""ZeRO stage, method, checkpointing, precision, peak in bytes."""


@pytest.mark.parametrize(("stage", "tuning", "checkpointing", "precision", "peak"), RECORDED)
def test_peak_of_the_worker(stage: int, tuning: str, checkpointing: bool, precision: str, peak: int) -> None:
    recorded = case(
        zero_stage=stage, tuning=tuning, gradient_checkpointing=checkpointing, precision=precision,
        ds_overrides=OVERRIDES[stage], global_batch_size=8, seq_len=256, optimizer="adamw",
    )  # fmt: skip
    assert fullest(job_of(recorded, 8, SHAPE)).peak.total == pytest.approx(peak, rel=0.05)


ACCUMULATED = [
    ("full-zero2", 1, False, 33583584), ("lora-zero2", 1, False, 25093596), ("full-zero2", 1, True, 21967840),
    ("full-zero2", 2, False, 30467424), ("lora-zero2", 2, False, 22937948), ("full-zero2", 2, True, 18851680),
    ("lora-zero2", 2, True, 12176220),
]  # fmt: skip
"""Case of `tiny` on two ranks with filled samples and two micro-batches a step, ZeRO stage, checkpointing, peak."""


@pytest.mark.parametrize(("case_id", "stage", "checkpointing", "peak"), ACCUMULATED)
def test_buckets_between_micro_batches(case_id: str, stage: int, checkpointing: bool, peak: int) -> None:
    case = next(c for c in load_suite("tiny").cases if c.id == case_id)
    changed = case.model_copy(update={"zero_stage": stage, "gradient_checkpointing": checkpointing})
    assert fullest(job_of(changed, 2, shape_of(case.model))).peak.total == pytest.approx(peak, rel=0.01)
