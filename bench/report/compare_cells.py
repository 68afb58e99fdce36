"""Cells of a comparison's tables: values by unit, ratios, intervals, notes."""

from __future__ import annotations

from typing import Any

from bench.analysis.metrics import METRICS
from bench.analysis.verdict import STATUS, Row
from bench.report.compare_words import CompareWords
from bench.report.formats import DASH, number, share, size


def value(metric: str, amount: float | None) -> str:
    """A value in the unit that ends its metric's name."""
    if amount is None:
        return DASH
    if metric.endswith("_bytes"):
        return size(amount)
    if metric.endswith("_per_s"):
        return number(amount)
    if metric.endswith("_s"):
        return seconds(amount)
    return share(amount) if METRICS[metric].kind == "share" else f"{amount:.4f}"


def seconds(amount: float) -> str:
    """Milliseconds below ten seconds."""
    return f"{number(1000 * amount)} ms" if abs(amount) < 10 else f"{amount:.1f} s"


def ratio(row: Row) -> str:
    """The ratio, for accuracies the difference in percentage points; a change too small to show says so."""
    if row.metric != STATUS and METRICS[row.metric].kind == "share":
        known = row.baseline is not None and row.candidate is not None
        return points(row.candidate - row.baseline) if known else DASH  # type: ignore[operator]
    return times(row.ratio)


def times(amount: float | None) -> str:
    """A ratio with three decimals, more where it would else read as 1."""
    if amount is None:
        return DASH
    for digits in (3, 4, 5, 6):
        if round(amount, digits) != 1 or amount == 1:
            return f"{amount:.{digits}f}" if abs(amount) < 1000 else f"{amount:,.0f}"
    return f"{amount:.9f}"


def points(amount: float) -> str:
    """A difference of shares."""
    return f"{100 * amount:+.1f} pp"


def interval(row: Row) -> str:
    """Bounds of the ratio, or of the difference for accuracies."""
    if row.low is None or row.high is None:
        return DASH
    if METRICS[row.metric].kind == "share":
        return f"{points(row.low)} … {points(row.high)}"
    return f"{row.low:.3f} … {row.high:.3f}"


def q_value(row: Row) -> str:
    """The adjusted p-value."""
    if row.q is None:
        return DASH
    return f"{row.q:.3f}" if row.q >= 0.001 else f"{row.q:.0e}".replace("e-0", "e-")


def launches(row: Row) -> str:
    """Launches that count on both sides."""
    return f"{row.launches[0]} / {row.launches[1]}"


def note(row: Row, words: CompareWords) -> str:
    """The sentence of a row."""
    if row.note is None:
        return ""
    values: dict[str, Any] = {"more": row.more, **row.details}
    if "side" in values:
        values["side"] = words(f"side_{values['side']}")
    if "fields" in values:
        values["fields"] = ", ".join(values["fields"])
    if row.note == "failures":
        values = {"failures": failures(row, words)}
    return words(f"n_{row.note}", **values)


def failures(row: Row, words: CompareWords) -> str:
    """Which launches failed on each side and how; equal ones once."""
    texts = []
    for i, side in enumerate(("baseline", "candidate")):
        failed = row.details[side]
        if not failed:
            continue
        kinds = list(dict.fromkeys(_failure(f, words) for f in failed))
        of = words("f_of", failed=len(failed), launches=row.launches[i])
        what = words("semicolon").join(kinds[:3]) + (" …" if len(kinds) > 3 else "")
        texts.append(f"{words(f'side_{side}')} {of}{words('colon')}{what}")
    return words("semicolon").join(texts)


def _failure(failed: dict[str, Any], words: CompareWords) -> str:
    if failed["status"] in ("curve_short", "curve_gap"):
        return words(f"f_{failed['status']}", at=failed["at"], steps=failed["steps"])
    reason = " ".join(str(failed.get("reason") or "").split())
    return failed["status"] + (f" ({reason[:160]})" if reason else "")
