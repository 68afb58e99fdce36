"""Models, adapters, schedules and evaluation in one process."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoTokenizer

from bench.errors import UnsupportedCase
from bench.spec.case import Case
from bench.spec.paths import ROOT
from bench.worker.batches import Collate
from bench.worker.data import IGNORE, build_dataset
from bench.worker.device import Device, check_precision
from bench.worker.loss import score, token_loss_sum
from bench.worker.model import build_model, linear_names, load_config
from bench.worker.optimizer import learning_rate

CPU = Device(torch.device("cpu"), "cpu")
FIELDS = {
    "id": "a", "model": "bench/assets/tiny", "data": "bench/assets/tiny/task.jsonl", "learning_rate": 1e-3, "steps": 10,
    "tuning": "lora", "engine": "ddp", "global_batch_size": 8, "micro_batch_size": 2, "seq_len": 64,
    "eval_samples": 30, "precision": "fp32",
}  # fmt: skip


def case(**fields) -> Case:
    return Case.model_validate({**FIELDS, **fields})


def test_a_target_that_matches_nothing_lists_the_real_names() -> None:
    with pytest.raises(UnsupportedCase, match=r"'wq'.*down_proj, gate_proj, k_proj"):
        build_model(case(target_modules=["q_proj", "wq"]), CPU, None)


def test_all_linear_means_every_linear_layer_but_the_head() -> None:
    model, counts, dims = build_model(case(lora_rank=4), CPU, None)
    plain, _, _ = build_model(case(tuning="full"), CPU, None)
    expected = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert linear_names(plain) == expected
    assert sorted(model.peft_config["default"].target_modules) == expected
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    per_layer = (dims.hidden + q) * 2 + 2 * (dims.hidden + kv) + 3 * (dims.hidden + dims.intermediate)
    assert counts.trainable == 4 * per_layer * dims.layers
    assert counts.total == counts.base + counts.trainable


def test_full_fine_tuning_trains_everything() -> None:
    model, counts, _ = build_model(case(tuning="full"), CPU, None)
    assert counts.trainable == counts.total == counts.base == sum(p.numel() for p in model.parameters())
    assert counts.total < 2_000_000
    assert model.training


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_random_weights_depend_on_names_and_seed_alone(tuning: str) -> None:
    fields = {"weights": "random", "tuning": tuning, "model_overrides": {"num_hidden_layers": 2}}
    one, two, other = (
        dict(build_model(case(seed=seed, **fields), CPU, None)[0].named_parameters()) for seed in (1, 1, 2)
    )
    assert all(one[name].equal(two[name]) for name in one)
    changed = [name for name in one if not one[name].equal(other[name])]
    assert len(changed) >= len(one) / 3


def test_overrides_change_the_shape_and_unknown_ones_are_refused() -> None:
    fields = {"weights": "random", "model_overrides": {"num_hidden_layers": 7, "num_key_value_heads": 2}}
    dims = build_model(case(**fields), CPU, None)[2]
    assert dims.layers == 7 and dims.kv_heads == 2
    with pytest.raises(UnsupportedCase, match="no field 'layers'"):
        load_config(case(weights="random", model_overrides={"layers": 3}))
    with pytest.raises(UnsupportedCase, match="positions"):
        load_config(case(seq_len=100_000))


def test_gradient_checkpointing_changes_no_gradient() -> None:
    def gradients(**fields) -> list[torch.Tensor]:
        model, _, _ = build_model(case(tuning="full", **fields), CPU, None)
        ids = torch.arange(24).reshape(2, 12)
        token_loss_sum(model(input_ids=ids, use_cache=False).logits, ids).backward()
        return [p.grad for p in model.parameters()]

    plain, recomputed = gradients(), gradients(gradient_checkpointing=True)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, recomputed, strict=True))


def test_the_loss_is_the_sum_over_labelled_tokens_alone() -> None:
    logits = torch.zeros(1, 4, 8)
    labels = torch.tensor([[3, IGNORE, 5, 7]])  # position t predicts t + 1: labels 5 and 7 count, 3 never
    assert token_loss_sum(logits, labels).item() == pytest.approx(2 * math.log(8))


@pytest.mark.parametrize("batch_size", [1, 7, 30])
@pytest.mark.parametrize("side", ["right", "left"])
def test_scores_do_not_depend_on_batch_size_or_padding_side(batch_size: int, side: str) -> None:
    model, _, _ = build_model(case(tuning="full"), CPU, None)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny", padding_side=side)
    samples = build_dataset(case(), tokenizer).held_out
    reference = {s.row: s for sample in samples for s in _score(model, [sample], tokenizer)}
    for start in range(0, len(samples), batch_size):
        for scored in _score(model, samples[start : start + batch_size], tokenizer):
            alone = reference[scored.row]
            assert scored.correct_tokens == alone.correct_tokens and scored.loss_tokens == alone.loss_tokens
            assert scored.loss_sum == pytest.approx(alone.loss_sum, rel=1e-5)


def _score(model, samples, tokenizer):
    batch = Collate(tokenizer.pad_token_id)(samples)
    with torch.no_grad():
        return score(model(input_ids=batch.input_ids, use_cache=False).logits, batch)


def test_exact_match_equals_greedy_decoding() -> None:
    model, _, _ = build_model(case(tuning="full"), CPU, None)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny")
    for sample in build_dataset(case(), tokenizer).held_out[:8]:
        prompt = [t for t, label in zip(sample.tokens, sample.labels, strict=True) if label == IGNORE]
        answer = list(sample.tokens[len(prompt) :])
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=len(answer), do_sample=False, use_cache=False,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        greedy = out[0, len(prompt) :].tolist() == answer
        assert _score(model, [sample], tokenizer)[0].exact == greedy


def test_schedules_warm_up_and_end_where_they_should() -> None:
    linear = [learning_rate(case(lr_warmup_steps=2, lr_schedule="linear"), step) for step in range(10)]
    assert linear[:3] == pytest.approx([0.5e-3, 1e-3, 1e-3]) and linear[-1] == pytest.approx(1e-3 / 8)
    cosine = [learning_rate(case(lr_warmup_steps=0, lr_schedule="cosine"), step) for step in range(10)]
    assert cosine[5] == pytest.approx(0.5e-3) and cosine == sorted(cosine, reverse=True)
    assert learning_rate(case(lr_schedule="constant"), 9) == 1e-3


def test_precisions_that_a_cpu_has_not_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedCase, match="bf16, fp32"):
        check_precision(case(precision="fp16"), CPU)
    with pytest.raises(UnsupportedCase, match="sdpa, eager"):
        check_precision(case(attention="flash_attention_2"), CPU)
