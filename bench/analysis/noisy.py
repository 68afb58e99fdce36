"""Verdicts of noisy metrics: from the tests of `ratios` to rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bench.analysis.metrics import Metric
from bench.analysis.pair import Pair, matrix
from bench.analysis.ratios import CONFIDENCE, MIN_LAUNCHES, SET_LEVEL, Ratios, SetWide, compare, more_launches, set_wide
from bench.analysis.verdict import Assumption, Comparison, Row, SetRow, Verdict


def judge(metric: Metric, pairs: Sequence[Pair], result: Comparison) -> None:
    """Add the rows of one metric to a comparison, and what its test assumed.

    Args:
        metric: noisy, or exact in all cases but these.
        pairs: with values on both sides.
        result: is extended.
    """
    if not pairs:
        return
    values = [matrix(side, metric.name) for side in ([p.baseline for p in pairs], [p.candidate for p in pairs])]
    ratios = compare(*values)
    result.rows += _rows(metric, pairs, ratios, result.fdr)
    result.assumptions.append(_assumption(metric, pairs, ratios, result))
    whole = set_wide(ratios) if metric.kind == "noisy" else None
    if whole:
        verdict = _set_verdict(metric, whole)
        result.set_rows.append(SetRow(metric.name, verdict, whole.ratio, whole.low, whole.high, whole.p, whole.cases))


def _rows(metric: Metric, pairs: Sequence[Pair], ratios: Ratios, fdr: float) -> list[Row]:
    b, c = ratios.sides
    low, high = ratios.interval((1 - CONFIDENCE) / 2)
    unchanged = ratios.rules_out(metric.detect, fdr)
    changed = (ratios.q <= fdr) & (np.abs(ratios.effect) >= math.log1p(metric.min_effect))
    real = ratios.q <= fdr
    more = more_launches(ratios, metric.detect)
    columns = [a.tolist() for a in (b.mean, c.mean, ratios.effect, low, high, ratios.p, ratios.q)]
    rows = []
    for i, pair in enumerate(pairs):
        before, after, effect, lower, upper, p, q = (column[i] for column in columns)
        row = Row(pair.case, metric.name, "inconclusive", _exp(before), _exp(after), _exp(effect),
                  launches=(int(b.count[i]), int(c.count[i])))  # fmt: skip
        rows.append(row)
        if math.isnan(effect):
            side = "baseline" if math.isnan(before) else "candidate"
            row.verdict, row.note, row.details = "missing", "not_positive", {"side": side}
            continue
        if ratios.tested[i]:
            row.low, row.high, row.p, row.q = _exp(lower), _exp(upper), p, q
        if changed[i]:
            row.verdict = "regressed" if effect * metric.sign > 0 else "improved"
            row.note = "noisy_change"
        elif unchanged[i]:
            row.verdict, row.note = "unchanged", "small_change" if real[i] else "ruled_out"
        else:
            row.more = int(more[i])
            row.note = "wide_interval" if ratios.tested[i] else "few_launches"
            row.details = {"needed": MIN_LAUNCHES} if not ratios.tested[i] else {}
    return rows


def _set_verdict(metric: Metric, whole: SetWide) -> Verdict:
    if whole.p is None or whole.low is None or whole.high is None:
        return "inconclusive"
    effect = math.log(whole.ratio)
    if whole.p <= SET_LEVEL and abs(effect) >= math.log1p(metric.min_effect):
        return "regressed" if effect * metric.sign > 0 else "improved"
    bound = math.log1p(metric.detect)
    return "unchanged" if -bound < math.log(whole.low) and math.log(whole.high) < bound else "inconclusive"


def _assumption(metric: Metric, pairs: Sequence[Pair], ratios: Ratios, result: Comparison) -> Assumption:
    pool = ratios.pool
    aside = []
    for side, noise, label in (
        ("baseline", ratios.sides[0], result.baseline.label), ("candidate", ratios.sides[1], result.candidate.label),
    ):  # fmt: skip
        for i, j in zip(*np.nonzero(noise.aside), strict=True):
            numbers = sorted({launch.repeat for p in pairs for launch in getattr(p, side)})
            aside.append((pairs[i].case, label, numbers[j]))
    typical = tuple(math.sqrt(pool.prior_variance * side.scale) for side in ratios.sides)
    return Assumption(
        metric.name, len(pairs), typical, None if math.isinf(pool.prior_df) else pool.prior_df,
        max(side.shared for side in ratios.sides), aside,
    )  # fmt: skip


def _exp(value: float) -> float | None:
    """Back from the logarithm; null where there is no finite number."""
    return math.exp(value) if math.isfinite(value) and value < 700 else None
