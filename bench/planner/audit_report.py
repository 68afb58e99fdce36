"""The audit as a markdown table in English or Chinese, or as strict JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.planner.audit_words import FORMULAS_ZH, WORDS
from bench.planner.claims import UNITS, Claim
from bench.planner.references import QUANTITIES
from bench.planner.verdicts import KINDS, Verdict
from bench.records.schema import CaseRecord


def render_audit(verdicts: Sequence[Verdict], language: str, style: str) -> str:
    """Render verdicts.

    Args:
        verdicts: in the order of the claims.
        language: `en` or `zh`.
        style: `markdown` or `json`.
    """
    if style == "json":
        return json.dumps([_facts(v) for v in verdicts], indent=2, ensure_ascii=False, allow_nan=False)
    words = WORDS[language]
    measured = any(v.measured is not None for v in verdicts)
    parts = [f"# {words['title']}", _summary(verdicts, words) + " " + words["meters"]]
    for document in dict.fromkeys(v.claim.document for v in verdicts):
        chosen = [v for v in verdicts if v.claim.document == document]
        parts += [f"## {words['document']} {document}", _table(chosen, words, language, measured)]
    return "\n\n".join(parts)


def _summary(verdicts: Sequence[Verdict], words: dict[str, str]) -> str:
    found = Counter(v.kind for v in verdicts)
    counts = ", ".join(f"{words[kind]} {found[kind]}" for kind in KINDS if found[kind])
    return words["summary"].format(n=len(verdicts), counts=counts)


def _table(verdicts: Sequence[Verdict], words: dict[str, str], language: str, measured: bool) -> str:
    columns = ["id", "statement", "stated", "formula", *(["measured"] if measured else []), "verdict", "why"]
    lines = [_row([words[name] for name in columns]), _row(["---"] * len(columns))]
    for verdict in verdicts:
        claim = verdict.claim
        cells = {
            "id": claim.id, "statement": claim.statement[language] or claim.statement["en"], "stated": claim.stated,
            "formula": _span(claim, verdict.reference), "verdict": f"**{words[verdict.kind]}**",
            "measured": "—" if verdict.measured is None else _value(claim, verdict.measured),
            "why": explain(verdict, language),
        }  # fmt: skip
        lines.append(_row([cells[name] for name in columns]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def explain(verdict: Verdict, language: str) -> str:
    """The reason of a verdict in words."""
    words, details = WORDS[language], dict(verdict.details)
    quantity = QUANTITIES.get(verdict.claim.quantity)
    formula = quantity.formula if quantity else ""
    details["formula"] = FORMULAS_ZH.get(formula, formula) if language == "zh" else formula
    details["unit"] = verdict.claim.unit
    if "fields" in details:
        details["fields"] = ", ".join(details["fields"])
    if "when" in details:
        joined = {name: "/".join(map(str, choices)) for name, choices in details["when"].items()}
        details["when"] = ", ".join(f"{name} = {choices}" for name, choices in joined.items())
    reason = verdict.reason
    if reason == "off":
        factor = details.get("factor")
        if factor is None:
            reason = "nothing"
        else:
            wide = factor > 2 or factor < 0.5
            details["difference"] = f"×{factor:.3g}" if wide else f"{details['percent']:+.1f} %"
    return words[f"why.{reason}"].format(**details)


def _value(claim: Claim, value: float) -> str:
    return f"{value / UNITS[claim.unit]:.4g} {claim.unit}".strip()


def _span(claim: Claim, reference: tuple[float, float] | None) -> str:
    if reference is None:
        return "—"
    low, high = reference
    if high - low <= 0.001 * abs(high):
        return _value(claim, high)
    return f"{low / UNITS[claim.unit]:.4g}–{_value(claim, high)}"


def _facts(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "id": claim.id, "document": claim.document, "quantity": claim.quantity, "unit": claim.unit,
        "stated": claim.stated, "verdict": verdict.kind, "why": explain(verdict, "en"),
        "formula_low": verdict.reference[0] / UNITS[claim.unit] if verdict.reference else None,
        "formula_high": verdict.reference[1] / UNITS[claim.unit] if verdict.reference else None,
        "measured": None if verdict.measured is None else verdict.measured / UNITS[claim.unit],
    }  # fmt: skip


def with_measurements(verdicts: Sequence[Verdict], cases: Sequence[CaseRecord]) -> list[Verdict]:
    """Add what a run measured for claims that name one of its configurations.

    Args:
        verdicts: the verdicts.
        cases: finished cases of a run; those that failed count for nothing.
    """
    done = [case for case in cases if case.status == "ok"]
    added = []
    for verdict in verdicts:
        measure = _MEASURES.get(verdict.claim.quantity)
        values = [measure(case) for case in done if measure and _same(verdict.claim, case)]
        known = [value for value in values if value is not None]
        added.append(replace(verdict, measured=known[0]) if known else verdict)
    return added


def _same(claim: Claim, record: CaseRecord) -> bool:
    """Every field that the claim states is the case's; fields it leaves open match anything."""
    case = record.case
    own = {
        "tuning": case.tuning, "precision": case.precision, "micro_batch": case.micro_batch_size,
        "seq_len": case.seq_len, "zero_stage": case.zero_stage or 0, "gpus": record.world_size,
        "tp": case.tp_size, "pp": case.pp_size, "lora_rank": case.lora_rank,
        "gradient_checkpointing": "yes" if case.gradient_checkpointing else "no",
    }  # fmt: skip
    wanted = claim.fields.get("model", "").rsplit("/", 1)[-1].lower()
    if not wanted or case.model.rsplit("/", 1)[-1].lower().removesuffix("-instruct") != wanted:
        return False
    return all(own[name] == value for name, value in claim.fields.items() if name in own)


def _peak(record: CaseRecord) -> float | None:
    meters = [
        phase.allocated_peak_bytes for rank in record.ranks for phase in rank.memory.values()
        if phase.allocated_peak_bytes is not None
    ]  # fmt: skip
    return max(meters, default=None)


_MEASURES: dict[str, Callable[[CaseRecord], float | None]] = {
    "peak_memory": _peak,
    "samples_per_s": lambda r: r.timed.samples / r.timed.window_s if r.timed else None,
    "trainable_parameters": lambda r: r.parameters.trainable if r.parameters else None,
    "parameters": lambda r: r.parameters.base if r.parameters else None,
    "checkpoint": lambda r: r.checkpoint.export_bytes if r.checkpoint else None,
}
"""Quantities that a run measures, by claim."""
