"""Prompts are masked, splits are fixed, batches hold the same samples for every layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bench.errors import DataError
from bench.spec.case import Case
from bench.spec.paths import ROOT
from bench.worker.batches import Collate, global_loss_tokens, micro_batch_indices, train_loader
from bench.worker.data import IGNORE, build_dataset, encode, load_rows, messages_of

FIELDS = {
    "id": "a", "model": "bench/assets/tiny", "data": "bench/assets/tiny/task.jsonl", "learning_rate": 1e-3, "steps": 6,
    "tuning": "full", "engine": "ddp", "global_batch_size": 8, "micro_batch_size": 2, "seq_len": 64,
    "eval_samples": 10,
}  # fmt: skip
CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny")


def case(**fields) -> Case:
    return Case.model_validate({**FIELDS, **fields})


def write_rows(path: Path, rows: list[dict]) -> str:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return str(path)


def test_alpaca_prompts_are_masked_and_answers_end_with_eos(tokenizer) -> None:
    turns = messages_of({"instruction": "Say", "input": "红", "output": "red"}, 0)
    tokens, labels = encode(turns, tokenizer)
    answer = [label for label in labels if label != IGNORE]
    assert tokenizer.decode(answer[:-1]) == "red" and answer[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokens).startswith("Say\n红\n答/Answer: red")
    assert labels[: len(tokens) - len(answer)] == [IGNORE] * (len(tokens) - len(answer))


def test_chat_templates_label_every_assistants_turn_and_nothing_else(tokenizer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny")
    tokenizer.chat_template = CHATML
    turns = [
        {"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "ef"}, {"role": "assistant", "content": "gh"},
    ]  # fmt: skip
    tokens, labels = encode(messages_of({"messages": turns}, 0), tokenizer)
    assert tokenizer.decode([label for label in labels if label != IGNORE]) == "cd<end>gh<end>"
    whole = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    assert tokens == list(whole)


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "bench/assets/tiny")
    tokenizer.chat_template = "{{ messages|length }}" + CHATML
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    with pytest.raises(DataError, match="rewrites earlier turns"):
        encode(turns, tokenizer)


@pytest.mark.parametrize(("dp_size", "micro"), [(1, 8), (1, 2), (2, 2), (4, 1), (8, 1)])
def test_every_layout_feeds_the_same_samples_in_the_same_global_batches(dp_size: int, micro: int) -> None:
    layout = case(micro_batch_size=micro)
    per_step = 8 // (micro * dp_size)
    ranks = [micro_batch_indices(layout, rank, dp_size) for rank in range(dp_size)]
    for step in range(layout.steps):
        fed = [i for rank in ranks for batch in rank[step * per_step : (step + 1) * per_step] for i in batch]
        assert sorted(fed) == list(range(8 * step, 8 * step + 8))


def test_held_out_rows_are_fixed_and_never_trained_on(tokenizer) -> None:
    one, two = (build_dataset(case(seed=seed, steps=40), tokenizer) for seed in (0, 1))
    validation = build_dataset(case(eval_split="validation", steps=40), tokenizer)
    rows = [sample.row for sample in one.held_out]
    assert rows == [sample.row for sample in two.held_out] and len(set(rows)) == 10
    other = {sample.row for sample in validation.held_out}
    assert other.isdisjoint(rows)
    trained = {sample.row for sample in one.train}
    assert trained.isdisjoint(rows) and trained.isdisjoint(other)
    assert [s.row for s in one.train] != [s.row for s in two.train]
    assert one.facts.fingerprint != two.facts.fingerprint
    assert one.facts.fingerprint == build_dataset(case(steps=40), tokenizer).facts.fingerprint


def test_epochs_are_reshuffled_and_counted(tokenizer, tmp_path: Path) -> None:
    rows = [{"instruction": f"count {i}", "input": "", "output": str(i)} for i in range(12)]
    data = build_dataset(case(data=write_rows(tmp_path / "d.jsonl", rows), eval_samples=1, steps=5), tokenizer)
    assert data.facts.train_rows == 10 and data.facts.epochs == pytest.approx(4.0)
    epochs = [[s.row for s in data.train[i : i + 10]] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs) and epochs[0] != epochs[1]


def test_truncation_is_counted_and_rows_without_an_answer_are_dropped(tokenizer, tmp_path: Path) -> None:
    long = {"instruction": "x " * 200, "input": "", "output": "y"}
    half = {"instruction": "x", "input": "", "output": "y " * 200}
    short = {"instruction": "x", "input": "", "output": "y"}
    path = write_rows(tmp_path / "d.jsonl", [long] * 5 + [half] * 5 + [short] * 10)
    data = build_dataset(case(data=path, eval_samples=0), tokenizer)
    assert data.facts.truncated == 5 and data.facts.dropped == 5 and data.facts.length_max == 64
    with pytest.raises(DataError, match="keeps an answer token"):
        build_dataset(case(data=write_rows(tmp_path / "e.jsonl", [long] * 20), eval_samples=0), tokenizer)


def test_filled_samples_have_exactly_the_sequence_length(tokenizer) -> None:
    data, plain = (build_dataset(case(fill=fill, seq_len=100), tokenizer) for fill in (True, False))
    assert {len(sample.tokens) for sample in data.train} == {100}
    assert sum(sample.loss_tokens for sample in data.train) > 2 * sum(sample.loss_tokens for sample in plain.train)
    assert data.train[0].tokens[: len(plain.train[0].tokens)] == plain.train[0].tokens


def test_padding_is_on_the_right_and_never_counts(tokenizer) -> None:
    data = build_dataset(case(), tokenizer)
    batch = Collate(tokenizer.pad_token_id)(data.train[:4])
    for row, sample in enumerate(data.train[:4]):
        length = len(sample.tokens)
        assert batch.input_ids[row, :length].tolist() == list(sample.tokens)
        assert batch.input_ids[row, length:].eq(tokenizer.pad_token_id).all()
        assert batch.labels[row, length:].eq(IGNORE).all()
    assert batch.tokens == sum(len(s.tokens) for s in data.train[:4])
    assert batch.loss_tokens == batch.labels[:, 1:].ne(IGNORE).sum()


def test_global_loss_tokens_add_up_over_ranks_and_loader_workers_change_nothing(tokenizer) -> None:
    plain, worked = case(), case(loader_workers=1, prefetch=3)
    data = build_dataset(plain, tokenizer)
    loaders = [train_loader(plain, data.train, tokenizer.pad_token_id, rank, 2) for rank in (0, 1)]
    batches = [list(loader) for loader in loaders]
    per_step = [sum(b.loss_tokens for rank in batches for b in rank[2 * s : 2 * s + 2]) for s in range(6)]
    assert per_step == global_loss_tokens(plain, data.train)
    again = list(train_loader(worked, data.train, tokenizer.pad_token_id, 0, 2))
    assert all(a.input_ids.equal(b.input_ids) for a, b in zip(batches[0], again, strict=True))


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str) -> None:
    import pandas as pd

    rows = [{"instruction": f"说 {i}", "input": "", "output": "好"} for i in range(30)]
    path = tmp_path / f"d{ending}"
    if ending == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif ending == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        write_rows(path, rows)
    assert load_rows(case(data=str(path))) == rows


def test_real_alpaca_files_are_read_and_masked(tokenizer) -> None:
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real Alpaca samples are not part of the repository")
    for name, rows in (("alpaca_zh_demo.json", 1000), ("alpaca_en_demo.json", 999)):
        data = build_dataset(case(data=str(folder / name), seq_len=256), tokenizer)
        assert data.facts.rows == rows and data.facts.length_max <= 256
        assert all(0 < sample.loss_tokens < len(sample.tokens) for sample in data.train)
