"""Metrics without noise: bytes, and losses of equally seeded runs. One launch is enough where launches agree."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.analysis.metrics import Metric
from bench.analysis.pair import Pair
from bench.analysis.ratios import MIN_LAUNCHES
from bench.analysis.verdict import Row


def judge(metric: Metric, pairs: Sequence[Pair]) -> tuple[list[Row], list[Pair]]:
    """Judge the cases whose launches agree.

    Args:
        metric: of kind `exact`; up to `min_effect` is the same, from `detect` on a single launch is believed.
        pairs: with values on both sides.

    Returns:
        Rows, and the pairs whose launches differ by more than the tolerance: those are noisy after all.
    """
    rows, noisy = [], []
    for pair in pairs:
        before, after = pair.values(metric.name)
        if before == after and len(before) == 1:  # most rows of a large comparison
            rows.append(_row(metric, pair.case, before, after))
        elif max(map(_spread, (before, after))) > metric.min_effect:
            noisy.append(pair)
        else:
            rows.append(_row(metric, pair.case, before, after))
    return rows, noisy


def _spread(values: Sequence[float]) -> float:
    """Largest relative difference between launches."""
    top = max(map(abs, values))
    return (max(values) - min(values)) / top if top else 0.0


def _row(metric: Metric, case: str, before: Sequence[float], after: Sequence[float]) -> Row:
    old, new = (side[0] if len(side) == 1 else statistics.median(side) for side in (before, after))
    row = Row(case, metric.name, "unchanged", old, new, launches=(len(before), len(after)), note="identical")
    if old == new:
        row.ratio = 1.0 if old else None
        return row
    change = (new - old) / abs(old) if old else float("inf")
    row.ratio = new / old if old else None
    row.note = "within_tolerance"
    if abs(change) <= metric.min_effect:
        return row
    fewest = min(row.launches)
    if abs(change) > metric.detect or fewest >= MIN_LAUNCHES:
        row.verdict = "regressed" if change * metric.sign > 0 else "improved"
        row.note = "exact_change"
    else:
        row.verdict, row.note, row.more = "inconclusive", "single_small", MIN_LAUNCHES - fewest
    return row
