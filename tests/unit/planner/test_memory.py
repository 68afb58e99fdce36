"""Bytes: known points, sums, monotony."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planner.activations import block_bytes
from bench.planner.job import FULL, HALF, Precision
from bench.planner.memory import fullest, rank_memories
from bench.planner.parameters import stages_of
from bench.planner.parts import PHASES
from bench.planner.states import largest_subgroup, states
from bench.spec.models import shape_of
from bench.units import GB, GIB
from tests.unit.planner.jobs import big, job


def test_zero3_states_of_32b() -> None:
    held = states(big("full", 2048), stages_of(big("full", 2048))[0])
    assert (held.resident - held.buckets) / GIB == pytest.approx(61.0, abs=0.1)


@pytest.mark.parametrize(
    ("tuning", "seq_len", "peak", "phase"),
    [("full", 512, 78.50, "step"), ("full", 2048, 78.50, "step"), ("full", 8192, 88.53, "backward"),
     ("lora", 2048, 15.96, "backward")],
)  # fmt: skip
def test_known_peaks_of_32b_under_zero3(tuning: str, seq_len: int, peak: float, phase: str) -> None:
    memory = fullest(big(tuning, seq_len))
    assert memory.peak.total / GB == pytest.approx(peak, rel=0.005)
    assert memory.peak.phase == phase
    assert memory.steady.total / GB == pytest.approx(65.63 if tuning == "full" else 8.56, rel=0.015)


def test_zero2_holds_whole_weights() -> None:
    assert fullest(big("full", 4096, zero_stage=2)).steady.total / GB == pytest.approx(114.7, rel=0.001)


def test_saved_activations_of_qwen2_7b() -> None:
    shape = shape_of("Qwen/Qwen2-7B")
    saved = block_bytes(job(shape=shape)).saved
    assert saved == 20 * shape.hidden + 8 * shape.intermediate + 4 * shape.kv_dim + 4 * shape.heads + 8 == 225_400


def test_head_width_apart_from_hidden() -> None:
    shape = shape_of("Qwen/Qwen3-32B")
    norms = 6 * (shape.q_dim + shape.kv_dim) + 4 * (shape.heads + shape.kv_heads)
    plain = 16 * shape.hidden + 4 * shape.q_dim + 4 * shape.kv_dim + 8 * shape.intermediate + 4 * shape.heads + 8
    assert block_bytes(job(shape=shape)).saved == plain + norms


def test_dropout_makes_lora_keep_more_than_full() -> None:
    lora = job(tuning="lora", lora_dropout=0.1)
    assert block_bytes(lora).saved > block_bytes(job()).saved > block_bytes(job(tuning="lora")).saved


def test_adapters_of_a_fused_layer_keep_what_they_scatter() -> None:
    """Llama-2-7B: q and v have 4096 outputs of 2 bytes each; where k is adapted too, nothing is spread out."""
    fused = job(tuning="lora", shape=shape_of("meta-llama/Llama-2-7b"), fused_qkv=True)
    query, both, all_three = (
        block_bytes(replace(fused, targets=targets)).saved
        for targets in (("q_proj",), ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj"))
    )
    assert both - query == query - all_three == 2 * 4096


def test_last_subgroup_takes_the_head() -> None:
    full = big("full", 2048)
    assert 1.0e9 < largest_subgroup(full, stages_of(full)[0]) < 1.1e9


layouts = st.builds(
    dict, tuning=st.sampled_from(["full", "lora"]), zero_stage=st.sampled_from([0, 1, 2, 3]),
    gradient_checkpointing=st.booleans(), attention=st.sampled_from(["flash", "eager"]),
    optimizer=st.sampled_from(["fused", "plain"]),
    precision=st.sampled_from([Precision(), Precision(FULL, FULL, FULL, 0, 8, FULL), Precision(moments=2.03)]),
)  # fmt: skip


@given(layouts, st.sampled_from([1, 2, 4]), st.integers(1, 8), st.sampled_from([64, 128, 256]), st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_properties(layout: dict, tp: int, micro: int, seq_len: int, pp_power: int) -> None:
    pp = 2**pp_power if layout["zero_stage"] < 2 else 1
    base = job(**layout, tp=tp, pp=pp, world_size=8 * tp * pp, micro_batch=micro, seq_len=seq_len, accumulation=4)
    for memory in rank_memories(base):
        for moment in (memory.steady, *memory.moments):
            assert moment.total == pytest.approx(sum(moment.components.values()))
            assert min(moment.components.values()) >= 0
        assert memory.peak.total == max(memory.phase_peak(phase).total for phase in PHASES)
    peak = fullest(base).peak.total
    slack = 1 + 1e-9
    assert fullest(replace(base, world_size=2 * base.world_size)).peak.total <= peak * slack
    assert fullest(replace(base, micro_batch=micro + 1)).peak.total * slack >= peak
    assert fullest(replace(base, seq_len=2 * seq_len)).peak.total * slack >= peak
    deeper = replace(base.shape, layers=base.shape.layers + base.pp)
    assert fullest(replace(base, shape=deeper)).peak.total * slack >= peak


def test_offload_moves_states_to_the_host() -> None:
    kept, moved = fullest(big("full", 2048)), fullest(big("full", 2048, offload_optimizer=True))
    assert moved.peak.components["optimizer_state"] == 0
    assert moved.host_bytes / GIB == pytest.approx(18 * 32_763_876_352 / 8 / GIB, rel=0.01)
    assert moved.peak.total < kept.peak.total


def test_eight_bit_moments_and_quantised_base() -> None:
    eight = job(precision=Precision(moments=2.03))
    assert fullest(eight).steady.components["optimizer_state"] < fullest(job()).steady.components["optimizer_state"] / 3
    base, packed = (job(tuning="lora", zero_stage=0, precision=Precision(weights=w)) for w in (HALF, 0.516))
    assert fullest(packed).steady.components["weights"] < fullest(base).steady.components["weights"]


def test_first_pipeline_stage_holds_more_micro_batches() -> None:
    stages = rank_memories(job(zero_stage=1, world_size=4, pp=4, accumulation=8))
    kept = [m.phase_peak("backward").components["activations"] for m in stages]
    assert kept[0] > kept[1] > kept[2]
    assert [m.stage.layers for m in stages] == [2, 2, 1, 1]
