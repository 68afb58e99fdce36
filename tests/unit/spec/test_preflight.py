"""Wrong files are named in one sentence before any process starts."""

import json
from pathlib import Path

import pytest

from bench.spec.case import Case
from bench.spec.preflight import why_not


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 128}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    (folder / "model.safetensors").write_bytes(b"x")
    return folder


@pytest.fixture
def reason(tmp_path: Path, model: Path):
    def ask(rows: list | str | None = None, name: str = "d.jsonl", **fields) -> str | None:
        rows = [{"instruction": "i", "input": "", "output": "o"}] * 40 if rows is None else rows
        text = rows if isinstance(rows, str) else "\n".join(json.dumps(row) for row in rows)
        (tmp_path / name).write_text(text, encoding="utf-8")
        case = {
            "id": "a", "model": str(model), "data": str(tmp_path / name), "learning_rate": 1e-3, "steps": 10,
            "tuning": "full", "zero_stage": 2, "global_batch_size": 16, "micro_batch_size": 2, "seq_len": 64,
        }  # fmt: skip
        return why_not(Case.model_validate({**case, **fields}), 2)

    return ask


def test_good_files_pass(reason) -> None:
    assert reason() is None
    assert reason([{"messages": [{"role": "user", "content": "x"}]}] * 40) is None
    assert reason(json.dumps([{"instruction": "i", "output": "o"}] * 40), name="d.json") is None


def test_hub_names_are_not_looked_up(reason) -> None:
    assert reason(model="org/model", data="org/data") is None


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"rows": ""}, ["no rows"]),
        ({"rows": "{not json"}, ["cannot be read"]),
        ({"rows": [{"question": "q", "answer": "a"}] * 40}, ["row 0", "question, answer", "instruction"]),
        ({"rows": [{"instruction": "i", "output": "o"}] * 9}, ["9 rows", "global batch of 16"]),
        ({"eval_samples": 20}, ["40 rows", "56"]),
        ({"name": "d.csv"}, [".csv", ".jsonl"]),
        ({"data": "./nowhere.jsonl"}, ["no file", "nowhere.jsonl"]),
        ({"model": "./nowhere"}, ["no folder", "nowhere"]),
        ({"model": "build/smollm2-nothing"}, ["prepare smollm2"]),
        ({"seq_len": 129}, ["129", "128 positions"]),
        ({"micro_batch_size": 3}, ["16", "3"]),
    ],
)
def test_bad_input_is_named(reason, arguments: dict, parts: list[str]) -> None:
    sentence = reason(**arguments)
    assert sentence is not None and "\n" not in sentence
    for part in parts:
        assert part in sentence


def test_a_model_without_pad_token_or_weights_is_named(reason, model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "no weights" in str(reason())
    assert reason(weights="random") is None
    (model / "tokenizer_config.json").write_text("{}")
    assert "no pad token" in str(reason())
    (model / "config.json").unlink()
    assert "no config.json" in str(reason())
