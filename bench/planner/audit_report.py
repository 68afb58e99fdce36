"""The audit as a markdown table in English or Chinese, or as strict JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.planner.audit_words import FORMULAS_ZH, WORDS
from bench.planner.claims import UNITS, Claim
from bench.planner.references import QUANTITIES
from bench.planner.verdicts import KINDS, Verdict
from bench.records.schema import RunRecord


def render_audit(verdicts: Sequence[Verdict], language: str, style: str, run: RunRecord | None = None) -> str:
    """Render verdicts.

    Args:
        verdicts: in the order of the claims.
        language: `en` or `zh`.
        style: `markdown` or `json`.
        run: the run whose measurements the verdicts hold, if any.
    """
    if style == "json":
        return json.dumps([_facts(v) for v in verdicts], indent=2, ensure_ascii=False, allow_nan=False)
    words = WORDS[language]
    measured = any(v.measured is not None for v in verdicts)
    parts = [f"# {words['title']}", _summary(verdicts, words) + " " + words["meters"]]
    parts += [_measurements(verdicts, run, words)] if run else []
    for document in dict.fromkeys(v.claim.document for v in verdicts):
        chosen = [v for v in verdicts if v.claim.document == document]
        parts += [f"## {words['document']} {document}", _table(chosen, words, language, measured)]
    return "\n\n".join(parts)


def _summary(verdicts: Sequence[Verdict], words: dict[str, str]) -> str:
    found = Counter(v.kind for v in verdicts)
    counts = ", ".join(f"{words[kind]} {found[kind]}" for kind in KINDS if found[kind])
    return words["summary"].format(n=len(verdicts), counts=counts)


def _measurements(verdicts: Sequence[Verdict], run: RunRecord, words: dict[str, str]) -> str:
    """What the run has to say on the claims, and on how many it says nothing."""
    names = {"run": run.run_id, "suite": run.suite, "device": run.environment.device}
    n, why = sum(v.measured is not None for v in verdicts), Counter(v.unmeasured for v in verdicts)
    others = words["others"].format(**{name: why[name] for name in ("quantity", "case", "value")})
    if n:
        return f"{words['measured_some'].format(n=n, **names)} {others}"
    models = dict.fromkeys(v.claim.fields["model"] for v in verdicts if "model" in v.claim.fields)
    return f"{words['measured_none'].format(models=', '.join(models) or '—', **names)} {others}"


def _table(verdicts: Sequence[Verdict], words: dict[str, str], language: str, measured: bool) -> str:
    columns = ["id", "statement", "stated", "formula", *(["measured"] if measured else []), "verdict", "why"]
    lines = [_row([words[name] for name in columns]), _row(["---"] * len(columns))]
    for verdict in verdicts:
        claim = verdict.claim
        cells = {
            "id": claim.id, "statement": claim.statement[language] or claim.statement["en"], "stated": claim.stated,
            "formula": _span(claim, verdict.reference), "verdict": f"**{words[verdict.kind]}**",
            "measured": _measured(verdict, words),
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


def _measured(verdict: Verdict, words: dict[str, str]) -> str:
    """Range over the matching cases, which are named where they are few."""
    cases = verdict.measured_by
    names = ", ".join(cases) if len(cases) <= 2 else words["n_cases"].format(n=len(cases))
    return f"{_span(verdict.claim, verdict.measured)} ({names})" if cases else "—"


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
        "measured_low": verdict.measured[0] / UNITS[claim.unit] if verdict.measured else None,
        "measured_high": verdict.measured[1] / UNITS[claim.unit] if verdict.measured else None,
        "measured_by": list(verdict.measured_by),
        "why_not_measured": WORDS["en"][f"unmeasured.{verdict.unmeasured}"] if verdict.unmeasured else None,
    }  # fmt: skip
