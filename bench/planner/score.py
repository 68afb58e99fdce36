"""How well the closed form predicts public measurements: errors by source, method and number of GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tabulate import tabulate

from bench.planner.measured import Measured
from bench.planner.memory import fullest
from bench.planner.meters import available_bytes, communicators, predict_meters
from bench.planner.speed import speed_of
from bench.units import GIB

CLOSE_CALL = 0.05
"""Share of the device by which a verdict may miss: a fitting row may be called too large by no more."""


@dataclass(frozen=True)
class Scored:
    """One row with what was predicted for it."""

    row: Measured
    predicted_bytes: float
    """By the row's own meter."""
    at: str
    """Phase and moment of the predicted peak."""
    memory_error: float | None
    """Relative, signed; None where the row states no bytes."""
    speed_error: float | None
    fits: bool
    over: float
    """By how much of the device the row is expected not to fit; negative where it fits."""

    @property
    def missed(self) -> str | None:
        """What is wrong with the verdict on fit, or None."""
        if self.row.meter == "oom" and self.fits:
            return "ran out of memory, predicted to fit"
        if self.row.peak_bytes is not None and self.over > CLOSE_CALL:
            return f"fitted, predicted too large by {100 * self.over:.1f} % of the device"
        return None


def score(rows: Iterable[Measured]) -> list[Scored]:
    """Predict every row that can be expressed."""
    return [_score(row) for row in rows if row.job is not None and row.gpu is not None]


def _score(row: Measured) -> Scored:
    job, gpu = row.job, row.gpu
    peak = fullest(job).peak
    groups = communicators(job.dp, job.tp, job.pp, job.sp)
    meters = predict_meters(peak.total, gpu, groups, extrapolated=False)
    predicted = meters.get(row.meter, meters["allocated"]).expected
    room = available_bytes(gpu, groups)
    need = meters["allocated"].expected
    rate = speed_of(job, gpu, 8, False).tokens_per_s if row.tokens_per_s else None
    return Scored(
        row, predicted, f"{peak.phase}, {peak.at}",
        predicted / row.peak_bytes - 1 if row.peak_bytes else None,
        rate / row.tokens_per_s - 1 if rate else None,
        need <= room, (need - room) / gpu.usable_bytes,
    )  # fmt: skip


def summary(scored: Sequence[Scored]) -> dict[str, list[dict[str, Any]]]:
    """Mean absolute errors and biases in percent, by group."""
    groups: dict[str, Callable[[Scored], tuple]] = {
        "source": lambda s: (s.row.source, s.row.meter, "one GPU" if s.row.n_gpus == 1 else "several"),
        "method": lambda s: (s.row.method, s.row.meter),
        "gpus": lambda s: (s.row.n_gpus, s.row.meter),
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for title, key in groups.items():
        with_bytes = [s for s in scored if s.memory_error is not None]
        found[f"memory by {title}"] = _grouped(with_bytes, key, lambda s: s.memory_error)
    with_rate = [s for s in scored if s.speed_error is not None]
    for title, key in groups.items():
        found[f"speed by {title}"] = _grouped(with_rate, lambda s, k=key: k(s)[:1], lambda s: s.speed_error)
    return found


def _grouped(
    scored: Sequence[Scored], key: Callable[[Scored], tuple], error: Callable[[Scored], float]
) -> list[dict[str, Any]]:
    by_key: dict[tuple, list[float]] = {}
    for item in scored:
        by_key.setdefault(key(item), []).append(100 * error(item))
    return [
        {
            "group": ", ".join(map(str, name)), "rows": len(errors),
            "mean_absolute_error_percent": round(fmean(map(abs, errors)), 2),
            "bias_percent": round(fmean(errors), 2), "worst_percent": round(max(errors, key=abs), 2),
        }
        for name, errors in sorted(by_key.items(), key=lambda item: str(item[0]))
    ]  # fmt: skip


def render_score(rows: Sequence[Measured], scored: Sequence[Scored], worst: int, style: str) -> str:
    """Render the score as text or JSON.

    Args:
        rows: all rows of the file.
        scored: those that could be predicted.
        worst: how many of the worst rows to name.
        style: `text` or `json`.
    """
    left_out: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            left_out.setdefault(row.reason, []).append(row.id)
    ranked = sorted((s for s in scored if s.memory_error is not None), key=lambda s: -abs(s.memory_error))
    misses = [s for s in scored if s.missed]
    oom = [s for s in scored if s.row.meter == "oom"]
    facts = {
        "rows": len(rows), "scored": len(scored), "oom_rows": len(oom),
        "oom_rows_predicted": sum(not s.fits for s in oom), **summary(scored),
        "worst": [_worst(s) for s in ranked[:worst]],
        "wrong_verdicts": [{"id": s.row.id, "model": s.row.model, "method": s.row.method, "verdict": s.missed}
                           for s in misses],
        "not_expressible": [{"reason": reason, "rows": len(ids), "ids": ids} for reason, ids in left_out.items()],
    }  # fmt: skip
    if style == "json":
        return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)
    return _text(facts)


def _worst(item: Scored) -> dict[str, Any]:
    row = item.row
    return {
        "id": row.id, "model": row.model, "method": row.method, "gpus": row.n_gpus, "meter": row.meter,
        "measured_gib": round(row.peak_bytes / GIB, 2), "predicted_gib": round(item.predicted_bytes / GIB, 2),
        "error_percent": round(100 * item.memory_error, 1), "peak": item.at,
    }  # fmt: skip


def _text(facts: dict[str, Any]) -> str:
    parts = [
        f"{facts['scored']} of {facts['rows']} rows can be expressed; {facts['oom_rows_predicted']} of "
        f"{facts['oom_rows']} out-of-memory rows are predicted not to fit."
    ]
    for title, table in facts.items():
        if not isinstance(table, list) or title == "not_expressible":
            continue
        body = tabulate(table, headers="keys", disable_numparse=True) if table else "none"
        parts.append(f"{title.replace('_', ' ')}\n{body}")
    lines = [f"  {entry['rows']:3d}  {entry['reason']}" for entry in facts["not_expressible"]]
    parts.append("rows that cannot be expressed, and why\n" + ("\n".join(lines) or "none"))
    return "\n\n".join(parts)
