"""Suites expand to the cases they say, and mistakes are named with file, key, value and what is accepted."""

from pathlib import Path

import pytest

from bench.errors import SpecError
from bench.spec.suite import load_suite, parse_override, suite_names

DEFAULTS = """
  model: m
  data: d
  learning_rate: 1e-3
  steps: 10
  global_batch_size: 8
  micro_batch_size: 2
  seq_len: 64
"""


@pytest.fixture
def suite(tmp_path: Path):
    def load(text: str, override: dict | None = None):
        path = tmp_path / "mine.yaml"
        path.write_text(f"description: test\ndefaults: {DEFAULTS}\n{text}", encoding="utf-8")
        return load_suite(str(path), override)

    return load


def test_axes_multiply_and_exclude_and_include_adjust_them(suite) -> None:
    loaded = suite("""
axes:
  tuning: [full, lora]
  strategy: {ddp: {engine: ddp}, z1: {zero_stage: 1}, z3: {zero_stage: 3}}
exclude: [{tuning: full, engine: ddp}]
include: [{id: extra, tuning: lora, zero_stage: 2, lora_rank: 4}]
""")
    assert [case.id for case in loaded.cases] == ["full-z1", "full-z3", "lora-ddp", "lora-z1", "lora-z3", "extra"]
    assert loaded.cases[2].zero_stage is None and loaded.cases[2].engine == "ddp"
    assert loaded.cases[-1].lora_rank == 4 and loaded.cases[-1].lora_alpha == 8


def test_arms_give_each_method_its_own_fields(suite) -> None:
    loaded = suite("""
arms: {full: {learning_rate: 1e-5}, lora: {learning_rate: 2e-4, lora_rank: 16}}
axes: {tuning: [full, lora], zero_stage: [1]}
""")
    full, lora = loaded.cases
    assert (full.learning_rate, full.lora_rank) == (1e-5, None)
    assert (lora.learning_rate, lora.lora_rank, lora.lora_alpha) == (2e-4, 16, 32)
    assert [full.id, lora.id] == ["full-z1", "lora-z1"]


def test_extending_overrides_every_case_and_keeps_ids(suite, tmp_path: Path) -> None:
    suite("axes: {tuning: [full, lora], zero_stage: [1]}\nheadline: {full: full-z1, lora: lora-z1}\nworld_size: 4\n")
    twin = tmp_path / "twin.yaml"
    twin.write_text(
        f"description: twin\nextends: {tmp_path}/mine.yaml\n"
        "override: {steps: 5, weights: random, model_overrides: {a: 1}, model_overrides.b: 2}\n"
    )
    loaded = load_suite(str(twin))
    assert [case.id for case in loaded.cases] == ["full-z1", "lora-z1"]
    assert all(case.steps == 5 and case.model_overrides == {"a": 1, "b": 2} for case in loaded.cases)
    assert loaded.headline is not None and loaded.headline.lora == "lora-z1" and loaded.world_size == 4


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cases: [{id: a, tuning: full, zero_stage: 7}]", ["mine.yaml", "'a'", "zero_stage", "7", "0, 1, 2 or 3"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1, seqlen: 3}]", ["unknown key 'seqlen'", "seq_len"]),
        ("cases: [{id: a, tuning: full}]", ["zero_stage is missing", "0, 1, 2 or 3"]),
        ("cases: [{id: a, tuning: qlora, zero_stage: 1}]", ["tuning", "'qlora'", "'full' or 'lora'"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1, micro_batch_size: 0}]", ["micro_batch_size", "0", "greater"]),
        ("cases: [{id: a, tuning: full, engine: ddp, zero_stage: 2}]", ["zero_stage 2", "deepspeed"]),
        ("cases: [{id: a/b, tuning: full, zero_stage: 1}]", ["id 'a/b'", "letters"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1, learning_rate: .nan}]", ["learning_rate"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1, warmup_steps: 10}]", ["warmup_steps 10", "10 steps"]),
        ("axes: {zero_stage: []}", ["axes", "zero_stage", "empty"]),
        ("include: [{id: a}]", ["include", "axes"]),
        ("arms: {qlora: {}}\ncases: [{id: a}]", ["arms", "qlora", "full, lora"]),
        ("frobnicate: 1", ["unknown key 'frobnicate'"]),
        ("cases: []", ["no case"]),
        ("axes: {tuning: [full], zero_stage: [1], lora_rank: [2, 4]}", ["the same", "full-z1-r2"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1}]\nheadline: {full: a, lora: b}", ["headline.lora", "'b'"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1}, {id: a, tuning: full, zero_stage: 2}]", ["'a'", "unique"]),
        ("extends: mine-too", ["'mine-too'", "tiny"]),
        ("cases: [{id: a, tuning: full, zero_stage: 1}]\ncases: []", ["duplicate", "line"]),
        ("x: [", ["not valid YAML", "line"]),
    ],
)
def test_mistakes_are_named(suite, text: str, parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        suite(text)
    for part in parts:
        assert part.lower() in str(caught.value).lower()


def test_a_suite_that_extends_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.write_text(f"description: x\nextends: {path}\n")
    with pytest.raises(SpecError, match="circle"):
        load_suite(str(path))


def test_overrides_from_the_command_line_are_yaml(suite) -> None:
    override = parse_override(["steps=7", "target_modules=[q_proj, v_proj]", "ds_overrides.zero_optimization.x=3"])
    case = suite("cases: [{id: a, tuning: lora, zero_stage: 3}]", override).cases[0]
    assert case.steps == 7 and case.target_modules == ("q_proj", "v_proj")
    assert case.ds_overrides == {"zero_optimization.x": 3}
    with pytest.raises(SpecError, match="FIELD=VALUE"):
        parse_override(["steps"])


def test_selecting_cases_that_do_not_exist_lists_those_that_do(suite) -> None:
    loaded = suite("axes: {tuning: [full, lora], zero_stage: [1]}")
    assert [case.id for case in loaded.select("lora-*").cases] == ["lora-z1"]
    with pytest.raises(SpecError, match=r"full-z1, lora-z1"):
        loaded.select("nothing*")


@pytest.mark.parametrize("name", suite_names())
def test_every_shipped_suite_is_valid_for_the_ranks_it_was_written_for(name: str) -> None:
    loaded = load_suite(name)
    assert loaded.description and loaded.cases
    for case in loaded.cases:
        assert case.accumulation_steps(loaded.world_size or 1) >= 1


def test_the_shipped_suites_are_those_that_are_promised() -> None:
    promised = {"tiny", "smollm2-cpu", "qwen2.5-32b-a100x8", "qwen2-7b-32gb", "lora-rank", "lora-targets"}
    assert promised <= set(suite_names())
