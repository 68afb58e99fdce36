"""Cases: derived sizes, layouts and the DeepSpeed config that follows from them."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from bench.errors import SpecError
from bench.spec import ds_config
from bench.spec.case import Case
from bench.spec.layout import remarks, why_model_unsupported, why_unsupported

FIELDS = {
    "id": "a", "model": "m", "data": "d", "learning_rate": 1e-3, "steps": 10, "tuning": "full", "zero_stage": 2,
    "global_batch_size": 16, "micro_batch_size": 2, "seq_len": 64,
}  # fmt: skip


def make(**fields) -> Case:
    return Case.model_validate({**FIELDS, **fields})


def test_a_case_is_frozen_and_every_field_is_documented() -> None:
    case = make()
    with pytest.raises(ValidationError):
        case.steps = 3
    undocumented = [name for name, field in Case.model_fields.items() if not field.description and name != "id"]
    assert undocumented == []


@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_accumulation_follows_from_the_sizes(world_size: int, accumulation: int) -> None:
    assert make().accumulation_steps(world_size) == accumulation


def test_sizes_that_do_not_divide_are_unsupported_with_the_sizes_named() -> None:
    reason = why_unsupported(make(), 3)
    assert reason is not None and "16" in reason and "2 × 3" in reason
    assert why_unsupported(make(), 8) is None
    reason = why_unsupported(make(), 16)
    assert reason is not None and "32" in reason


def test_layouts_that_do_not_exist_are_refused_by_name() -> None:
    assert why_unsupported(make(tp_size=2), 4) is None
    assert "tp_size 2" in str(why_unsupported(make(tp_size=2, engine="ddp", zero_stage=None), 4))
    assert "zero_stage 1" in str(why_unsupported(make(tp_size=2, zero_stage=0), 4))
    assert "offload" in str(why_unsupported(make(tp_size=2, offload_optimizer="cpu"), 4))
    assert "zero_stage 2" in str(why_unsupported(make(pp_size=2, zero_stage=2), 4))
    assert why_unsupported(make(pp_size=2, zero_stage=3), 4) is None
    assert "eager" in str(why_unsupported(make(sp_size=2, attention="eager"), 4))
    assert "data parallelism only" in str(why_unsupported(make(sp_size=2, tp_size=2), 4))


def test_layouts_carry_their_caveats() -> None:
    assert any("Experimental" in note for note in remarks(make(pp_size=2, zero_stage=3), 4))
    assert any("by vocabulary" in note for note in remarks(make(tp_size=2), 4))
    assert any("shards nothing" in note for note in remarks(make(tp_size=2, pp_size=2, zero_stage=3), 4))
    assert not any("shards nothing" in note for note in remarks(make(sp_size=4, zero_stage=3), 4))


CONFIG = {"model_type": "qwen2", "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4}


def test_models_that_do_not_fit_a_layout_are_refused_with_the_number_that_does_not_divide() -> None:
    assert why_model_unsupported(make(tp_size=4), CONFIG) is None
    assert "8 attention heads; accepted: 1, 2, 4" in str(why_model_unsupported(make(tp_size=3), CONFIG))
    assert "4 key-value heads" in str(why_model_unsupported(make(tp_size=8), CONFIG))
    assert "gpt2" in str(why_model_unsupported(make(tp_size=2), {**CONFIG, "model_type": "gpt2"}))
    assert why_model_unsupported(make(), {}) is None
    assert "4 layers" in str(why_model_unsupported(make(pp_size=8), CONFIG))
    assert "tied" in str(why_model_unsupported(make(pp_size=2, zero_stage=3), {**CONFIG, "tie_word_embeddings": True}))
    assert "sliding" in str(why_model_unsupported(make(pp_size=2), {**CONFIG, "use_sliding_window": True}))
    assert "8 attention heads" in str(why_model_unsupported(make(sp_size=3), CONFIG))
    assert "key-value" in str(why_model_unsupported(make(sp_size=6), {**CONFIG, "num_attention_heads": 12}))
    overridden = make(tp_size=8, weights="random", model_overrides={"num_key_value_heads": 8})
    assert why_model_unsupported(overridden, CONFIG) is None


def test_full_fine_tuning_has_no_lora_fields_and_ddp_no_deepspeed_ones() -> None:
    case = make(lora_rank=8, target_modules=["q_proj"])
    assert case.lora_rank is case.lora_alpha is case.target_modules is None
    ddp = make(engine="ddp", zero_stage=None, ds_overrides={"a": 1}, ds_config="x.json")
    assert ddp.ds_overrides == {} and ddp.ds_config is None


def test_remarks_name_what_a_reader_must_know() -> None:
    assert any("drift" in note for note in remarks(make(zero_stage=0), 2))
    assert remarks(make(zero_stage=0, precision="fp32"), 2) == []
    assert any("shards nothing" in note for note in remarks(make(zero_stage=3), 1))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_resolved_config_says_everything_the_case_says(stage: int) -> None:
    config = ds_config.resolve(make(zero_stage=stage, max_grad_norm=0.5), 4)
    assert config["train_batch_size"] == 16
    assert config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 4 == 16
    assert config["gradient_clipping"] == 0.5
    assert config["bf16"]["enabled"] is True and config["fp16"]["enabled"] is False
    assert config["zero_optimization"]["stage"] == stage
    assert "auto" not in json.dumps(config)
    if stage:
        assert config["zero_optimization"]["reduce_bucket_size"] < 5e8


def test_overrides_reach_into_the_template_but_not_into_the_case(tmp_path: Path) -> None:
    config = ds_config.resolve(make(ds_overrides={"zero_optimization.reduce_bucket_size": 1000}), 2)
    assert config["zero_optimization"]["reduce_bucket_size"] == 1000
    with pytest.raises(SpecError, match="gradient_clipping"):
        ds_config.resolve(make(ds_overrides={"gradient_clipping": 3}), 2)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"train_batch_size": 99}', "train_batch_size is 99"),
        ('{"foo": "auto"}', "foo"),
        ("{", "not valid JSON"),
    ],
)
def test_templates_that_contradict_the_case_are_refused(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=part):
        ds_config.resolve(make(ds_config=str(path)), 2)


def test_a_missing_template_lists_those_that_exist() -> None:
    with pytest.raises(SpecError, match=r"zero3\.json"):
        ds_config.resolve(make(ds_config="nowhere.json"), 2)
