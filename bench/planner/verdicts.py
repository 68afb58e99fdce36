"""What comes of a claim when it is held against arithmetic, formula and measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.errors import SpecError
from bench.planner.claim_formulas import Reference
from bench.planner.claims import UNITS, Claim, evaluate
from bench.planner.references import EXACT, QUANTITIES, Quantity, variants

KINDS = ("agrees", "off", "impossible", "contradicts", "condition")
"""Agrees; off by; impossible (below a floor, above a ceiling, or no such thing); contradicts itself; needs a
condition."""
WITHOUT_FORMULA = ("arithmetic", "measurement", "statement")
"""Claims that are only the document's own arithmetic, only measurable, or state no number."""
FLAGS = ("gpu_has_bf16",)
_NUMERIC = ("micro_batch", "seq_len")
"""Open fields whose alternatives are samples of a continuum: what lies between them is possible."""
ROUNDING = 0.02
"""Documents round: their own arithmetic may miss their value by this much."""


@dataclass(frozen=True)
class Verdict:
    """The outcome for one claim."""

    claim: Claim
    kind: str
    """One of KINDS."""
    reason: str
    """A key of the report's phrases."""
    details: dict[str, Any] = field(default_factory=dict)
    """Values for the phrase: numbers in the claim's unit, names of fields."""
    reference: tuple[float, float] | None = None
    """Formula's value, or its range over what the claim leaves open, in bytes, counts or plain numbers."""
    measured: tuple[float, float] | None = None
    """Least and most that cases of this configuration measured, in the same unit."""
    measured_by: tuple[str, ...] = ()
    """These cases."""
    unmeasured: str | None = "run"
    """Why nothing is measured: no `run` was given, none measures the `quantity`, no finished `case` has the
    configuration, or those that have lack the `value`."""


def judge(claim: Claim) -> Verdict:
    """Judge one claim from its fields alone.

    Raises:
        SpecError: the claim names a quantity that does not exist.
    """
    contradiction = _own_arithmetic(claim)
    if claim.quantity in WITHOUT_FORMULA:
        return contradiction or _without_formula(claim)
    if claim.quantity not in QUANTITIES:
        accepted = ", ".join((*QUANTITIES, *WITHOUT_FORMULA))
        raise SpecError(f"claim {claim.id}: quantity {claim.quantity!r}; accepted: {accepted}")
    quantity = QUANTITIES[claim.quantity]
    try:
        verdict = _against_formula(claim, quantity)
    except SpecError as error:
        verdict = _no_such_thing(claim, str(error))
    if contradiction and verdict.kind != "impossible":
        return Verdict(claim, "contradicts", contradiction.reason, contradiction.details, verdict.reference)
    return verdict


def _own_arithmetic(claim: Claim) -> Verdict | None:
    if not claim.expression:
        return None
    result = evaluate(claim.expression)
    if isinstance(result, bool):
        return None if result else Verdict(claim, "contradicts", "comparison", {"expression": claim.expression})
    if claim.low is None:
        return None
    scale = UNITS[claim.unit]
    low, high = claim.low / scale, claim.high / scale
    room = ROUNDING * max(abs(low), abs(high))
    if low - room <= result <= high + room:
        return None
    return Verdict(claim, "contradicts", "sum", {"expression": claim.expression, "result": result})


def _without_formula(claim: Claim) -> Verdict:
    if claim.quantity == "arithmetic" and claim.expression:
        return Verdict(claim, "agrees", "arithmetic", {"expression": claim.expression})
    return Verdict(claim, "condition", claim.quantity)


def _no_such_thing(claim: Claim, message: str) -> Verdict:
    if "ambiguous" in message:
        return Verdict(claim, "condition", "ambiguous", {"message": message.split(";")[-1].strip()})
    return Verdict(claim, "impossible", "unknown", {"message": message.split(";")[0]})


def _against_formula(claim: Claim, quantity: Quantity) -> Verdict:
    missing = [name for name in quantity.needs if name not in claim.fields]
    if missing:
        return Verdict(claim, "condition", "missing", {"fields": missing})
    if claim.low is None:
        return Verdict(claim, "condition", "statement")
    tried = [(variant, quantity.compute({**claim.fields, **variant})) for variant in variants(quantity, claim.fields)]
    values = [reference.value for _, reference in tried]
    span = (min(values), max(values))
    impossible = _beyond(claim, [reference for _, reference in tried], span)
    if impossible:
        return impossible
    agreeing = [variant for variant, reference in tried if _agrees(claim, reference.value, quantity.tolerance)]
    if len(agreeing) == len(tried):
        return Verdict(claim, "agrees", "formula", {}, span)
    if agreeing:
        return Verdict(claim, "condition", "if", {"when": _common(agreeing)}, span)
    open_numbers = [name for name in _NUMERIC if any(name in variant for variant, _ in tried)]
    if open_numbers and span[0] < claim.low and claim.high < span[1]:
        return Verdict(claim, "condition", "between", {"fields": list(tried[0][0])}, span)
    if claim.quantity in FLAGS:
        return Verdict(claim, "off", "flag", {}, span)
    nearest = min(values, key=lambda value: _distance(claim, value))
    return Verdict(claim, "off", "off", _difference(claim, nearest), span)


def _beyond(claim: Claim, references: Sequence[Reference], span: tuple[float, float]) -> Verdict | None:
    """Below every alternative's floor, or above every ceiling."""
    floors = [r.floor for r in references if r.floor is not None]
    ceilings = [r.ceiling for r in references if r.ceiling is not None]
    if len(floors) == len(references) and claim.high < min(floors) * (1 - EXACT) and claim.relation != ">=":
        return Verdict(claim, "impossible", "floor", {"bound": min(floors) / UNITS[claim.unit]}, span)
    if len(ceilings) == len(references) and claim.low > max(ceilings) * (1 + EXACT) and claim.relation != "<=":
        return Verdict(claim, "impossible", "ceiling", {"bound": max(ceilings) / UNITS[claim.unit]}, span)
    return None


def _agrees(claim: Claim, value: float, tolerance: float) -> bool:
    room = tolerance * abs(value)
    if claim.relation == "<=":
        return value <= claim.high * (1 + tolerance)
    if claim.relation == ">=":
        return value >= claim.low * (1 - tolerance)
    return claim.low - room <= value <= claim.high + room


def _distance(claim: Claim, value: float) -> float:
    if claim.low <= value <= claim.high:
        return 0.0
    return min(abs(value - claim.low), abs(value - claim.high))


def _difference(claim: Claim, value: float) -> dict[str, Any]:
    """How far the nearer end of the claim is from the formula."""
    stated = min((claim.low, claim.high), key=lambda bound: abs(bound - value))
    if value == 0:
        return {"stated": stated / UNITS[claim.unit], "percent": None, "factor": None}
    factor = stated / value
    return {"percent": 100 * (factor - 1), "factor": factor}


def _common(agreeing: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Per open field, the choices under which the claim holds."""
    names = agreeing[0]
    return {name: list(dict.fromkeys(variant[name] for variant in agreeing)) for name in names}
