"""The audit: verdicts follow the fields, not the ids."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bench.__main__ import Verbs
from bench.errors import SpecError
from bench.planner.audit_report import explain, render_audit
from bench.planner.audit_words import FORMULAS_ZH, WORDS
from bench.planner.claims import CLAIMS, Claim, evaluate, read_claims
from bench.planner.references import QUANTITIES
from bench.planner.verdicts import KINDS, judge
from tests.unit.planner.jobs import shared

ALL = read_claims(CLAIMS)


def claim(identifier: str) -> Claim:
    return next(c for c in ALL if c.id == identifier)


def test_every_claim_of_the_documents_is_there() -> None:
    with shared("claims.csv").open(encoding="utf-8") as file:
        wanted = {row["id"] for row in csv.DictReader(file)}
    assert {c.id.partition(".")[0] for c in ALL} == wanted


@pytest.mark.parametrize(
    ("identifier", "kind"),
    [
        ("B09", "impossible"), ("B08", "impossible"), ("B10", "off"), ("B26", "contradicts"), ("B01", "condition"),
        ("B04", "agrees"), ("B25", "agrees"), ("A15", "impossible"), ("A05", "contradicts"), ("A24.2", "impossible"),
        ("A07.1", "off"), ("B22", "contradicts"), ("B24.1", "condition"), ("A06", "off"),
    ],
)  # fmt: skip
def test_verdicts(identifier: str, kind: str) -> None:
    assert judge(claim(identifier)).kind == kind


def test_all_kinds_occur() -> None:
    assert {judge(c).kind for c in ALL} == set(KINDS)


def test_ids_texts_and_documents_decide_nothing() -> None:
    ids = [c.id for c in ALL]
    random.Random(0).shuffle(ids)
    for original, identifier in zip(ALL, ids, strict=True):
        other = replace(original, id=identifier, document="X", statement={"en": "", "zh": ""})
        assert judge(other).kind == judge(original).kind


@pytest.mark.parametrize("identifier", ["B04", "B05", "B02", "B25", "A34"])
def test_a_right_claim_turns_wrong_with_its_value(identifier: str) -> None:
    right = replace(claim(identifier), expression="")
    assert judge(right).kind == "agrees"
    assert judge(replace(right, low=3 * right.low, high=3 * right.high)).kind in ("off", "impossible")


@pytest.mark.parametrize("identifier", ["B10", "B12", "B13", "A04.1", "A07.3", "B24.2", "A37"])
def test_a_wrong_claim_turns_right_with_the_formula(identifier: str) -> None:
    wrong = replace(claim(identifier), expression="")
    verdict = judge(wrong)
    assert verdict.kind == "off"
    assert judge(replace(wrong, low=verdict.reference[0], high=verdict.reference[0])).kind == "agrees"


def test_below_the_floor_whatever_the_id() -> None:
    right = claim("B08")
    enough = judge(replace(right, low=90e9, high=90e9, expression=""))
    assert enough.kind == "condition"


def test_sharding_needs_data_parallel_ranks() -> None:
    wide = replace(claim("B09"), fields={**claim("B09").fields, "gpus": 16})
    assert judge(wide).kind == "agrees"


@pytest.mark.parametrize(("text", "value"), [("(1+2)*4+32", 44), ("4.7>5.8", False), ("2**3/4", 2.0)])
def test_arithmetic(text: str, value: object) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize("text", ["__import__('os')", "a+1", "1+", "1/0", "max(1,2)"])
def test_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(SpecError, match="only numbers"):
        evaluate(text)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_reports(language: str) -> None:
    text = render_audit([judge(c) for c in ALL], language, "markdown")
    for c in ALL:
        assert f"| {c.id} |" in text
        assert explain(judge(c), language)
        assert c.statement[language]


def test_both_languages_have_the_same_phrases() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    spoken = {
        q.formula for q in QUANTITIES.values() if any(word.isalpha() and len(word) > 4 for word in q.formula.split())
    }
    assert spoken - FORMULAS_ZH.keys() <= {"config.json"}


def test_command_and_json() -> None:
    result = CliRunner().invoke(Verbs(), ["audit", "--format", "json"])
    rows = json.loads(result.output)
    assert len(rows) == len(ALL) and {row["verdict"] for row in rows} == set(KINDS)


def test_unknown_quantity_and_wrong_columns_are_refused(tmp_path) -> None:
    with pytest.raises(SpecError, match="accepted: parameters"):
        judge(replace(ALL[0], quantity="beauty"))
    file = tmp_path / "c.csv"
    file.write_text("id,claim\n1,x\n")
    result = CliRunner().invoke(Verbs(), ["audit", str(file)])
    assert result.exit_code == 2 and "quantity" in result.output
