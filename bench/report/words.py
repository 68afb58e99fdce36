"""The report's words by language. Every key exists in every language."""

from __future__ import annotations

from dataclasses import dataclass

from bench.report.chinese import CHINESE
from bench.report.english import ENGLISH

WORDS = {"en": ENGLISH, "zh": CHINESE}


@dataclass(frozen=True)
class Words:
    """One language; call it with a key and the values of its placeholders."""

    language: str
    """`en` or `zh`."""

    def __call__(self, key: str, **values: object) -> str:
        """The text of a key; raises KeyError for an unknown one, which only a mistake in the code can cause."""
        text = WORDS[self.language][key]
        return text.format(**values) if values else text

    def get(self, key: str, otherwise: str) -> str:
        """The text of a key, or another text for names that records bring along (phases, roles, categories)."""
        return WORDS[self.language].get(key, otherwise)

    def __contains__(self, key: str) -> bool:
        return key in WORDS[self.language]
