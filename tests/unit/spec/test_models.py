"""Shapes: exact counts, names, overrides, configs."""

from __future__ import annotations

import csv
import json

import pytest

from bench.errors import SpecError
from bench.spec.models import CATALOGUE, model_names, shape_of

CONFIG = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_exact_points() -> None:
    shape = shape_of("Qwen/Qwen2.5-32B")
    assert shape.parameters == 32_763_876_352
    assert shape.lora_parameters(8, ("q_proj", "k_proj", "v_proj")) == 11_534_336
    assert shape_of("Qwen/Qwen2-7B").parameters == 7_615_616_512


def test_every_entry_has_a_source_and_the_count_of_its_shape() -> None:
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == model_names()
    for row in rows:
        assert row["source"]
        assert shape_of(row["name"]).parameters == int(row["parameters"])


def test_heads_times_head_dim_is_not_hidden() -> None:
    shape = shape_of("qwen3-32b")
    assert (shape.hidden, shape.q_dim) == (5120, 8192)


@pytest.mark.parametrize("name", ["QWEN/qwen2-7b", "Qwen2-7B-Instruct", "Qwen/Qwen2-7B-Instruct"])
def test_names_match_whatever_their_case(name: str) -> None:
    assert shape_of(name).name == "Qwen/Qwen2-7B"


def test_ambiguous_name_lists_the_checkpoints() -> None:
    with pytest.raises(SpecError, match=r"ambiguous.*Qwen1.5-32B.*Qwen2.5-32B.*QwQ-32B.*Qwen3-32B"):
        shape_of("qwen-32b")


def test_unknown_name_lists_what_is_known(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SpecError, match=r"unknown shape.*Qwen/Qwen2.5-32B"):
        shape_of("Qwen/Qwen2.5-33B")


def test_config_of_a_folder_equals_the_catalogue(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert shape_of(str(tmp_path)).parameters == shape_of("Qwen/Qwen3-32B").parameters


def test_config_in_the_hub_cache_is_found(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "models--org--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert shape_of("org/model").heads == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "mixtral"), ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"), ({"num_key_value_heads": 7}, "7 KV heads"),
    ],
)  # fmt: skip
def test_bad_configs_are_refused_by_field(tmp_path, change, message) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(SpecError, match=message):
        shape_of(str(tmp_path))


def test_overrides_replace_fields() -> None:
    assert shape_of("Qwen/Qwen2-7B", {"num_hidden_layers": 2}).layers == 2
    with pytest.raises(SpecError, match=r"num_hidden_layers is 0"):
        shape_of("Qwen/Qwen2-7B", {"num_hidden_layers": 0})


def test_unknown_target_module_is_refused() -> None:
    with pytest.raises(SpecError, match=r"c_attn.*q_proj"):
        shape_of("Qwen/Qwen2-7B").lora_parameters(8, ("c_attn",))
