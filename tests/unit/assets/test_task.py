"""The fine-tuning task: what is stored is what the generator writes, and every row is sound."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from bench.assets import task
from bench.assets.lexicon import CATEGORY_OF, LANGUAGES, TERMS

ROWS = [json.loads(line) for line in task.PATH.read_text(encoding="utf-8").splitlines()]
NAMED = {name: term for term in TERMS for name in term}


def test_stored_rows_are_the_generated_rows(tmp_path: Path) -> None:
    task.write(tmp_path / "task.jsonl")
    assert (tmp_path / "task.jsonl").read_bytes() == task.PATH.read_bytes()


def test_a_seed_fixes_the_rows() -> None:
    assert list(islice(task.rows(7), 200)) == list(islice(task.rows(7), 200))
    assert list(islice(task.rows(7), 200)) != list(islice(task.rows(8), 200))


def test_file_size_and_row_count() -> None:
    assert task.PATH.stat().st_size <= 600_000
    assert len(ROWS) == 3000


def test_rows_are_alpaca_rows_of_plain_text() -> None:
    for row in ROWS:
        assert list(row) == ["instruction", "input", "output"]
        for text in row.values():
            assert text and text == " ".join(text.split())


def test_no_two_rows_ask_the_same() -> None:
    assert max(Counter((row["instruction"], row["input"]) for row in ROWS).values()) == 1


def test_splits_cover_the_rows_without_overlap() -> None:
    positions = [i for split in task.SPLITS.values() for i in range(len(ROWS))[split]]
    assert positions == list(range(len(ROWS)))


def test_answers_differ_in_length_and_rarely_repeat() -> None:
    assert set(Counter(len(row["output"].split()) for row in ROWS)) >= {1, 2, 3, 4, 5, 6}
    assert Counter(row["output"] for row in ROWS).most_common(1)[0][1] < 0.02 * len(ROWS)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("seed", range(50))
def test_answers_follow_from_the_input(seed: int, language: str) -> None:
    for kind in task.KINDS:
        row = kind(Random(seed), language)
        given = [NAMED[name] for name in row["input"].split()]
        answer = row["output"].split()
        if kind is task.name_kinds:
            assert [name in CATEGORY_OF[term] for name, term in zip(answer, given, strict=True)]
            continue
        if kind is task.count_chosen:
            assert int(answer.pop(0)) == len(answer)
        terms = [NAMED[name] for name in answer]
        backwards = kind in (task.translate_backwards, task.leave_out)
        assert terms == [term for term in (given[::-1] if backwards else given) if term in terms]
        if kind in (task.translate_chosen, task.count_chosen):
            assert len({CATEGORY_OF[term] for term in terms}) == 1
