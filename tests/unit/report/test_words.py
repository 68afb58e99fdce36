"""Languages hold the same keys and placeholders; every word of the code exists; figures can draw them."""

from __future__ import annotations

import re
import string
from pathlib import Path

from matplotlib.ft2font import FT2Font

import bench.report
from bench.analysis.derive import METERS, QUANTITIES
from bench.report.compare_words import WORDS as COMPARE_WORDS
from bench.report.figures.style import FONT_FILE, wrapped
from bench.report.formats import Notes, number, points, share, size, times
from bench.report.markdown import fence, inline, table
from bench.report.memory import CATEGORIES
from bench.report.words import WORDS


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_languages_have_equal_keys_and_placeholders():
    for words in (WORDS, COMPARE_WORDS):
        english, chinese = words["en"], words["zh"]
        assert set(english) == set(chinese)
        assert [key for key in english if placeholders(english[key]) != placeholders(chinese[key])] == []


def test_every_key_that_the_code_names_exists():
    source = "".join(path.read_text(encoding="utf-8") for path in Path(bench.report.__file__).parent.rglob("*.py"))
    named = set(re.findall(r"\bwords\(\s*\"(\w+)\"", source))
    named |= {f"category_{name}" for name in CATEGORIES} | {f"meter_{m}" for m in METERS}
    named |= {f"meter_name_{m}" for m in METERS} | {f"peak_{m}_bytes" for m in METERS}
    assert named - set(WORDS["en"]) - set(COMPARE_WORDS["en"]) == set()


def test_every_word_of_the_figures_has_a_glyph():
    charmap = FT2Font(str(FONT_FILE)).get_charmap()
    text = "".join(v for language in WORDS.values() for v in language.values())
    assert {c for c in text if ord(c) not in charmap and not c.isspace()} == set()
    assert FONT_FILE.stat().st_size <= 2_000_000


def test_quantities_have_units_in_their_columns():
    for quantity in QUANTITIES.values():
        assert quantity.unit == "count" or quantity.column.endswith(quantity.unit)


def test_numbers_keep_their_digits():
    assert [size(n) for n in (0, 1024, 200_000, 5 * 2**20, 2**29, 80 * 2**30)] == [
        "0", "1.0 KiB", "0.191 MiB", "5.00 MiB", "0.500 GiB", "80.00 GiB",
    ]  # fmt: skip
    assert [number(v) for v in (12345.6, 123.45, 12.345, 1.2345, 0.012345, 0.00012345)] == [
        "12,346", "123.5", "12.35", "1.234", "0.0123", "0.000123",
    ]  # fmt: skip
    assert [share(v) for v in (1, 0.5, 0.0026, 0)] == ["100.0 %", "50.0 %", "0.26 %", "0.0 %"]
    assert [times(v) for v in (153.2, 0.4321, 0.000261)] == ["153×", "0.43×", "0.000261×"]
    assert points(-0.012) == "−1.2"


def test_markdown_holds_against_any_text():
    assert inline("a|b\n`c` <d> _e_ f_g") == r"a\|b \`c\` &lt;d&gt; \_e\_ f_g"
    assert table(["x", "y"], [["1|2", ""]]).splitlines()[-1].count("|") - 1 == 3
    assert fence("``` ````").startswith("`````\n")


def test_footnotes_are_shared_and_counted():
    notes = Notes()
    assert [notes.dash(r) for r in ("a", "b", "a")] == ["—¹", "—²", "—¹"]
    assert notes.lines() == ["¹ a", "² b"]


def test_long_names_wrap_after_separators():
    lines = wrapped("full-z3-Qwen2.5-32B-Instruct-b16-s4096-all-linear-r64", 20).split("\n")
    assert max(map(len, lines)) <= 20 and "".join(lines).startswith("full-z3-Qwen2.5-32B")
    assert max(map(len, wrapped("x" * 100, 20).split("\n"))) <= 20
