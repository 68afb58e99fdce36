"""Hold two releases side by side: a pure function from launches to verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.analysis import exact, noisy, shares
from bench.analysis.conditions import Conditions, environments, other_meter, spoiled
from bench.analysis.launch import Launch
from bench.analysis.metrics import Metric, Scope
from bench.analysis.pair import Pair
from bench.analysis.release import Release
from bench.analysis.verdict import STATUS, Comparison, Row

FDR = 0.05
"""Default false discovery rate among the changes that one metric reports."""


def compare(
    baseline: Release, candidate: Release, metrics: Sequence[Metric], axis: Sequence[str] = (), fdr: float = FDR
) -> Comparison:
    """Judge every case and metric of two releases.

    Args:
        baseline: what was.
        candidate: what is.
        metrics: with their thresholds, from `metrics.choose`.
        axis: what is meant to differ; empty takes every difference in software.
        fdr: false discovery rate among the changes reported of one metric.

    Returns:
        Rows in the order of the baseline's suite; a metric that no side measured for a case has no row.
    """
    conditions = environments(baseline.environment, candidate.environment, axis)
    rows: list[Row] = []
    pairs: list[Pair] = []
    for case in _cases(baseline, candidate):
        pair = Pair(case, baseline.launches.get(case, []), candidate.launches.get(case, []))
        rows += _status(pair)
        if pair.baseline and pair.candidate:
            pair.spoiled = spoiled(pair.baseline, pair.candidate, conditions.axis if conditions.stated else ())
            pairs.append(pair)
    result = Comparison(baseline, candidate, list(metrics), fdr, conditions, rows, [], [])
    for metric in metrics:
        _judge(metric, pairs, result)
    order = {case: i for i, case in enumerate(_cases(baseline, candidate))}
    rank = {name: i for i, name in enumerate([STATUS, *(m.name for m in metrics)])}
    rows.sort(key=lambda row: (order[row.case], rank[row.metric]))
    return result


def _cases(baseline: Release, candidate: Release) -> list[str]:
    """Every case that any side planned or measured."""
    return list(dict.fromkeys([*baseline.planned, *baseline.launches, *candidate.planned, *candidate.launches]))


def _status(pair: Pair) -> list[Row]:
    """Rows about the case as a whole: missing, failing, a broken curve, launches that are not there."""
    launches = (len(pair.baseline), len(pair.candidate))
    if not pair.baseline and not pair.candidate:
        return [Row(pair.case, STATUS, "missing", note="never_run", details={"side": "both"})]
    if not pair.candidate:
        return [Row(pair.case, STATUS, "missing", launches=launches, note="vanished", details={"side": "candidate"})]
    if not pair.baseline:
        return [Row(pair.case, STATUS, "missing", launches=launches, note="new_case", details={"side": "baseline"})]
    before, after = (_failures(side) for side in (pair.baseline, pair.candidate))
    if not before and not after:
        return []
    verdict = "both failing" if before and after else "newly failing" if after else "newly passing"
    details = {"baseline": before, "candidate": after, "launches": launches}
    worse = verdict == "both failing" and len(after) == launches[1] and len(before) < launches[0]
    verdict = "newly failing" if worse else verdict
    return [Row(pair.case, STATUS, verdict, launches=launches, note="failures", details=details)]


def _failures(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Failed launches of one side; a loss curve with a gap or without its end is a failure."""
    failed: list[dict[str, Any]] = []
    for launch in launches:
        if launch.status != "ok":
            failed.append({"launch": launch.repeat, "status": launch.status, "reason": launch.reason})
        elif launch.curve:
            kind, at, steps = launch.curve
            failed.append({"launch": launch.repeat, "status": kind, "at": at, "steps": steps})
    return failed


def _judge(metric: Metric, pairs: Sequence[Pair], result: Comparison) -> None:
    """Rows of one metric: first what cannot be judged, then the rest by the metric's kind."""
    fields = _spoiling(result.conditions, metric.scope)
    open_pairs = []
    for pair in pairs:
        row = _not_judged(metric, pair, fields)
        if row is None:
            open_pairs.append(pair)
        elif row.verdict != "unchanged":
            result.rows.append(row)
    if metric.kind == "exact":
        rows, open_pairs = exact.judge(metric, open_pairs)
        result.rows += rows
    elif metric.kind == "share":
        result.rows += shares.judge(metric, open_pairs, result.fdr)
        return
    noisy.judge(metric, open_pairs, result)


def _spoiling(conditions: Conditions, scope: Scope) -> list[str]:
    return [name for name, scopes in conditions.spoiled() if scope in scopes]


def _not_judged(metric: Metric, pair: Pair, fields: Sequence[str]) -> Row | None:
    """A row for a pair without two values or without equal conditions; None where it can be judged.

    A pair that neither side measured gives a row `unchanged`, which the caller drops: nothing was claimed.
    """
    before, after = pair.values(metric.name)
    counts = (len(before), len(after))
    if not before and not after:
        return Row(pair.case, metric.name, "unchanged")
    if not (before and after) and not pair.ran:
        return Row(pair.case, metric.name, "unchanged")  # the status row says so already
    names = [name for name, scopes in pair.spoiled.items() if metric.scope in scopes] + list(fields)
    if not (before and after) and other_meter(metric, pair.measured()[0 if after else 1]):
        names.append("meter")
    if names:
        return Row(pair.case, metric.name, "not comparable", typical(before), typical(after), launches=counts,
                   note="differing", details={"fields": names})  # fmt: skip
    if not before or not after:
        side = "candidate" if before else "baseline"
        return Row(pair.case, metric.name, "missing", typical(before), typical(after), launches=counts,
                   note="not_measured", details={"side": side})  # fmt: skip
    return None


def typical(values: Sequence[float]) -> float | None:
    """The middle of some launches; None without any."""
    return sorted(values)[len(values) // 2] if values else None
