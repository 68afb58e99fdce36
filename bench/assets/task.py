"""The fine-tuning task: short closed instructions in Chinese and English, in Alpaca format.

Every kind combines skills that pretraining showed one at a time, so that neither the base model
nor a memorised string answers it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from bench.assets.corpus import draw_terms
from bench.assets.lexicon import CATEGORY_OF, LANGUAGES, Term, listing

SEED = 20240607
SPLITS = {"train": slice(0, 2400), "validation": slice(2400, 2700), "test": slice(2700, 3000)}
"""Rows of each split; learning rates are chosen on `validation`, headlines read from `test`."""

Row = dict[str, str]
PATH = Path(__file__).parent / "tiny" / "task.jsonl"


def _row(instruction: str, given: str, output: str) -> Row:
    return {"instruction": instruction, "input": given, "output": output}


def _wanted(rng: Random, terms: list[Term]) -> Term:
    return rng.choice([CATEGORY_OF[term] for term in terms])


def translate_backwards(rng: Random, language: str) -> Row:
    """Translate a list and turn its order round."""
    source, target = rng.sample(LANGUAGES, 2)
    terms = draw_terms(rng)
    ask = {
        "zh": {"zh": "从后往前译成中文", "en": "从后往前译成英文"},
        "en": {"zh": "From last to first, in Chinese", "en": "From last to first, in English"},
    }[language][target]
    return _row(ask, listing(terms, source), listing(terms[::-1], target))


def translate_chosen(rng: Random, language: str) -> Row:
    """Translate only the members of one category."""
    source, target = rng.sample(LANGUAGES, 2)
    terms = draw_terms(rng, low=3)
    wanted = _wanted(rng, terms)
    ask = {"zh": f"只译{wanted.zh}", "en": f"Translate only the {wanted.en}"}[language]
    return _row(ask, listing(terms, source), listing([t for t in terms if CATEGORY_OF[t] == wanted], target))


def leave_out(rng: Random, language: str) -> Row:
    """Turn a list round without the members of one category; draw again if nothing would be left."""
    spoken, terms = rng.choice(LANGUAGES), draw_terms(rng, low=3)
    unwanted = _wanted(rng, terms)
    kept = [term for term in terms[::-1] if CATEGORY_OF[term] != unwanted]
    if not kept:
        return leave_out(rng, language)
    ask = {"zh": f"从后往前，不要{unwanted.zh}", "en": f"From last to first, without the {unwanted.en}"}[language]
    return _row(ask, listing(terms, spoken), listing(kept, spoken))


def count_chosen(rng: Random, language: str) -> Row:
    """Count the members of one category and name them."""
    spoken, terms = rng.choice(LANGUAGES), draw_terms(rng, low=3)
    wanted = _wanted(rng, terms)
    found = [term for term in terms if CATEGORY_OF[term] == wanted]
    ask = {"zh": f"有多少{wanted.zh}", "en": f"How many {wanted.en}"}[language]
    return _row(ask, listing(terms, spoken), f"{len(found)} {listing(found, spoken)}")


def name_kinds(rng: Random, language: str) -> Row:
    """Name each term's category in the other language."""
    source, target = rng.sample(LANGUAGES, 2)
    terms = draw_terms(rng)
    ask = {
        "zh": {"zh": "用中文说种类", "en": "用英文说种类"},
        "en": {"zh": "Say the kinds in Chinese", "en": "Say the kinds in English"},
    }[language][target]
    return _row(ask, listing(terms, source), listing([CATEGORY_OF[t] for t in terms], target))


KINDS: tuple[Callable[[Random, str], Row], ...] = (
    translate_backwards,
    translate_chosen,
    leave_out,
    count_chosen,
    name_kinds,
)


def rows(seed: int = SEED) -> Iterator[Row]:
    """Yield task rows without end; no two share an instruction and an input."""
    rng, seen = Random(seed), set()
    while True:
        row = rng.choice(KINDS)(rng, rng.choice(LANGUAGES))
        key = row["instruction"], row["input"]
        if key not in seen:
            seen.add(key)
            yield row


def write(path: Path = PATH) -> None:
    """Write the task's rows, one JSON object a line, in the order that `SPLITS` cuts."""
    count = max(split.stop for split in SPLITS.values())
    lines = [json.dumps(row, ensure_ascii=False) for row in islice(rows(), count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
