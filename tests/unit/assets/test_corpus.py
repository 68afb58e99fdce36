"""The pretraining text: reproducible, bilingual, and silent about the task."""

from itertools import islice

from bench.assets import corpus, task
from bench.assets.lexicon import CATEGORIES, LANGUAGES, TERMS


def sample(seed: int, count: int = 5000) -> list[str]:
    return list(islice(corpus.documents(seed), count))


def test_a_seed_fixes_the_documents() -> None:
    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_every_name_means_one_thing() -> None:
    for language in LANGUAGES:
        names = [term.say(language) for term in (*TERMS, *CATEGORIES)]
        assert len(names) == len(set(names)) == 72


def test_every_term_is_seen_in_both_languages() -> None:
    text = "\n".join(sample(1))
    assert [name for term in TERMS for name in term if name not in text] == []


def test_no_document_uses_an_instruction_of_the_task() -> None:
    instructions = {row["instruction"].lower() for row in islice(task.rows(), 3000)}
    text = "\n".join(sample(1, 20_000)).lower()
    assert [instruction for instruction in instructions if instruction in text] == []
