"""FLOPs per token against known decompositions."""

from __future__ import annotations

import pytest

from bench.spec.flops import model_flops_per_token
from bench.spec.models import shape_of

SHAPE = shape_of("Qwen/Qwen2.5-32B")


def test_full_is_six_per_matrix_weight_plus_attention() -> None:
    matrices = SHAPE.layers * SHAPE.matrix_parameters_per_layer + SHAPE.vocab * SHAPE.hidden
    attention = 12 * SHAPE.layers * SHAPE.q_dim * 2048 / 2
    assert model_flops_per_token(SHAPE, 2048, "full").model == pytest.approx(6 * matrices + attention)


def test_lora_is_two_thirds_of_full_without_attention_and_adapters() -> None:
    full = model_flops_per_token(SHAPE, 1, "full").model
    lora = model_flops_per_token(SHAPE, 1, "lora", 1, ("k_proj",)).model
    assert lora / full == pytest.approx(4 / 6, rel=1e-3)


def test_recomputation_counts_as_hardware_flops_only() -> None:
    plain = model_flops_per_token(SHAPE, 2048, "full")
    checkpointed = model_flops_per_token(SHAPE, 2048, "full", gradient_checkpointing=True)
    assert checkpointed.model == plain.model == plain.hardware
    assert 1.3 < checkpointed.hardware / plain.hardware < 1.34


def test_tied_head_is_still_a_product() -> None:
    shape = shape_of("Qwen/Qwen2.5-0.5B")
    assert shape.tied
    assert model_flops_per_token(shape, 1, "full").model > 6 * shape.vocab * shape.hidden
