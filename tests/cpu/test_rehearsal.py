"""A rehearsal sees what real ranks see: the same storages at the peak of every phase."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.planner.plan import plan_case
from bench.records.memory import MemoryPass
from bench.records.schema import CaseRecord
from bench.spec.case import Case
from bench.spec.hardware import gpu
from bench.spec.suite import load_suite
from bench.worker.rehearsal.fresh import Part, play_all

from .conftest import write_suite

TOLERANCE = 1e-3
SUITE = {
    "weights": "random", "optimizer": "adamw", "precision": "bf16", "fill": True, "steps": 2, "warmup_steps": 1,
    "eval_samples": 0, "save_checkpoint": False, "memory_steps": 1, "global_batch_size": 16, "micro_batch_size": 1,
    "model_overrides": {
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 128,
        "intermediate_size": 512, "tie_word_embeddings": False,
    },
    "ds_overrides": {
        "zero_optimization.stage3_param_persistence_threshold": 0, "zero_optimization.reduce_bucket_size": 200_000,
        "zero_optimization.stage3_prefetch_bucket_size": 100_000,
        "zero_optimization.stage3_max_live_parameters": 400_000,
        "zero_optimization.stage3_max_reuse_distance": 400_000,
    },
}  # fmt: skip
FULL, LORA = {"tuning": "full"}, {"tuning": "lora"}
CHECKPOINTING = {"gradient_checkpointing": True}
DDP = {"engine": "ddp"}
Z0, Z1, Z2, Z3 = ({"zero_stage": stage} for stage in range(4))
OFFLOAD = {"offload_optimizer": "cpu"}
PP2 = {"pp_size": 2, "global_batch_size": 4}
"""A stage holds every micro-batch of a step, 16 bytes a token: with many, a tiny model would notice."""
DEFAULT = {
    "full-z1": FULL | Z1, "full-z2": FULL | Z2, "full-z3": FULL | Z3,
    "lora-z3-checkpointing": LORA | Z3 | CHECKPOINTING,
    "lora-ddp-checkpointing": LORA | DDP | CHECKPOINTING, "full-pp2": FULL | Z1 | PP2,
}  # fmt: skip
SLOW = {
    2: {
        **{
            f"{tuning}-{name}-{checkpointing}": {"tuning": tuning, "gradient_checkpointing": checkpointing} | engine
            for tuning in ("full", "lora")
            for name, engine in (("ddp", DDP), ("z0", Z0), ("z1", Z1), ("z2", Z2), ("z3", Z3))
            for checkpointing in (True, False)
        },
        "full-tp2": FULL | Z1 | {"tp_size": 2}, "full-sp2": FULL | Z3 | {"sp_size": 2},
        "lora-sp2": LORA | Z3 | {"sp_size": 2}, "full-z3-pp2": FULL | Z3 | PP2,
    },
    4: {
        "full-z2-w4": FULL | Z2, "full-z3-w4": FULL | Z3 | CHECKPOINTING, "lora-z3-w4": LORA | Z3,
        "full-z3-tp2-dp2": FULL | Z3 | {"tp_size": 2}, "full-tp2-pp2": FULL | Z1 | PP2 | {"tp_size": 2},
        "full-z3-offload-w4": FULL | Z3 | OFFLOAD,
    },
    8: {
        "full-z1-w8": FULL | Z1 | CHECKPOINTING, "full-z3-w8": FULL | Z3, "lora-z2-w8": LORA | Z2 | CHECKPOINTING,
        "full-pp2-dp4": FULL | Z1 | {"pp_size": 2},
    },
}  # fmt: skip


def play(parts: list[Part], timeout_s: float = 300) -> list[MemoryPass]:
    return play_all(parts, len(os.sched_getaffinity(0)), timeout_s, lambda part: None)


def check(records: dict[str, CaseRecord], world_size: int, late: float) -> None:
    """Rank 0 and the last rank of every case, which with stages is the last stage.

    `late` is how much more a real rank may hold: gloo's reductions clone what they reduce, and garbage in cycles waits
    for its collection, both as long as timing has it.
    """
    pairs = [(record, rank) for record in records.values() for rank in sorted({0, world_size - 1})]
    played = play([Part.of(record.case, world_size, rank) for record, rank in pairs])
    for (record, rank), seen in zip(pairs, played, strict=True):
        assert seen.status == "ok", (record.case.id, rank, seen.reason)
        real = record.ranks[rank].memory_pass
        # A rehearsal knows what lies on the host, which on CPU is the same memory.
        peak = max(phase.peak_bytes + phase.by_category.get("host", 0) for phase in seen.phases.values())
        low, high = real.peak_bytes * (1 - late), real.peak_bytes * (1 + TOLERANCE)
        assert low <= peak <= high, (record.case.id, rank, peak, real.peak_bytes)
        assert seen.phases.keys() == real.phases.keys()


def test_rehearsal_equals_two_real_ranks(launch, tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "s.yaml", [{"id": id, **fields} for id, fields in DEFAULT.items()], **SUITE)
    check(launch(2, suite).cases, 2, late=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", SLOW)
def test_more_rehearsals(launch, tmp_path: Path, world_size: int) -> None:
    cases = [{"id": id, **fields} for id, fields in SLOW[world_size].items()]
    check(launch(world_size, write_suite(tmp_path / "s.yaml", cases, **SUITE)).cases, world_size, late=0.05)


def of_32b(case_id: str, **fields: object) -> Case:
    suite = load_suite("qwen2.5-32b-a100x8", {"optimizer": "adamw", **fields})
    return next(case for case in suite.cases if case.id == case_id)


@pytest.mark.slow
def test_points_seen_by_experiment() -> None:
    """Rank 0 of 8, bucket 5e7, plain AdamW, the default loss, everything sharded: seen with DeepSpeed 0.19.8, in GB."""
    sharded = {"ds_overrides.zero_optimization.stage3_param_persistence_threshold": 0}
    full, lora = (of_32b(f"{tuning}-zero3-filled", **sharded) for tuning in ("full", "lora"))
    seen_full, seen_lora = play([Part.of(case, 8, 0) for case in (full, lora)], 600)
    peaks = [(one.phases["steady"].peak_bytes / 1e9, one.peak_bytes / 1e9) for one in (seen_full, seen_lora)]
    assert peaks[0] == pytest.approx((65.63, 78.50), abs=0.01)
    assert peaks[1] == pytest.approx((8.56, 15.96), abs=0.01)
    plan = plan_case(full, 8, gpu("a100-80gb"))
    assert plan.fullest.peak.total == pytest.approx(seen_full.peak_bytes, rel=0.03)


def test_equal_parts_are_played_once_and_long_accumulation_is_cut() -> None:
    alpaca, filled = of_32b("full-zero3-alpaca"), of_32b("full-zero3-filled")
    assert Part.of(alpaca, 8, 0).key == Part.of(filled, 8, 0).key != Part.of(filled, 8, 1).key
    assert Part.of(filled, 8, 0).case.accumulation_steps(8) == 2
    pipeline = Part.of(of_32b("full-pp8-filled"), 8, 3)
    assert pipeline.case.accumulation_steps(8) == 9
    assert Part.of(of_32b("lora-zero3-filled"), 8, 0).case.lora_rank == 16


def test_a_rehearsal_that_fails_or_hangs_has_a_name(tmp_path: Path) -> None:
    fields = {"id": "c", "data": "none", "learning_rate": 1e-5, **SUITE, **LORA, **Z2, "seq_len": 64}
    tiny = Case.model_validate({**fields, "model": "bench/assets/tiny"})
    wrong = tiny.model_copy(update={"target_modules": ("no_such_layer",)})
    broken = tiny.model_copy(update={"attention": "no_such_kernel"})
    refused, crashed = play([Part.of(wrong, 2, 0), Part.of(broken, 2, 0)])
    assert refused.status == "skipped" and "no_such_layer" in refused.reason and "q_proj" in refused.reason
    assert crashed.status == "crashed" and "no_such_kernel" in crashed.reason
    assert not crashed.phases and crashed.peak_bytes is None
    [late] = play([Part.of(tiny, 2, 0)], timeout_s=0.01)
    assert late.status == "crashed" and "longer than 0.01 s" in late.reason
