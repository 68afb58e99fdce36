"""A series of releases: each case's course in each metric, and the releases at which its level changed.

Change points come from binary segmentation: the split of a series into a left and a right part whose means differ
most, tested with the noise between launches, Bonferroni over the splits of a case and Benjamini-Hochberg over the
cases; then the same within both parts. Where no release has repeats, the noise comes from the differences between
neighbouring releases (most of them assumed to change nothing), and a series needs `MIN_UNREPEATED` releases.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from bench.analysis.conditions import environments, spoiled
from bench.analysis.metrics import Metric
from bench.analysis.pair import matrix
from bench.analysis.pooling import fit
from bench.analysis.ratios import adjust
from bench.analysis.release import Release

MIN_UNREPEATED = 6
"""Releases from which a series with one launch each says something of its own noise."""


@dataclass
class Line:
    """One case in one metric."""

    case: str
    values: list[float | None]
    """One a release; null where it was not measured or not under the first release's conditions."""
    changes: list[int] = field(default_factory=list)
    """Indices of releases at which the level changed from what was before."""

    @property
    def ratios(self) -> list[float | None]:
        """Values relative to the first that is there."""
        first = next((v for v in self.values if v), None)
        return [v / first if v is not None and first else None for v in self.values]


@dataclass(frozen=True)
class Trend:
    """One metric over all releases."""

    metric: Metric
    labels: list[str]
    lines: list[Line]
    tested: bool
    """Whether change points could be looked for."""
    overall: list[float | None]
    """Geometric mean of the ratios of the cases that have every release; null without any."""


def trends(releases: Sequence[Release], metrics: Sequence[Metric], axis: Sequence[str], fdr: float) -> list[Trend]:
    """Follow every metric through the releases.

    Args:
        releases: in order.
        metrics: with their thresholds.
        axis: what is meant to differ, as in `compare`.
        fdr: false discovery rate over the cases of one metric.
    """
    cases = list(dict.fromkeys(case for release in releases for case in release.launches))
    found = []
    for metric in metrics:
        usable = _usable(releases, cases, metric, axis)
        logs = [_points(release, cases, metric, usable[:, r]) for r, release in enumerate(releases)]
        present = [i for i in range(len(cases)) if sum(not np.isnan(m[i]).all() for m in logs) > 1]
        if present:
            found.append(_trend(metric, releases, [cases[i] for i in present], [m[present] for m in logs], fdr))
    return found


def _usable(releases: Sequence[Release], cases: Sequence[str], metric: Metric, axis: Sequence[str]) -> np.ndarray:
    """Bool, cases × releases: measured under the conditions of the case's first release."""
    usable = np.zeros((len(cases), len(releases)), bool)
    first = releases[0].environment
    barred = [
        any(metric.scope in scopes for _, scopes in environments(first, release.environment, axis).spoiled())
        for release in releases
    ]
    for i, case in enumerate(cases):
        start = next(release.launches[case] for release in releases if release.launches.get(case))
        for r, release in enumerate(releases):
            side = release.launches.get(case, [])
            ok = any(launch.status == "ok" and not launch.curve for launch in side) and not barred[r]
            usable[i, r] = ok and all(metric.scope not in s for s in spoiled(start, side, axis).values())
    return usable


def _points(release: Release, cases: Sequence[str], metric: Metric, usable: np.ndarray) -> np.ndarray:
    """Values of one release as cases × launches, NaN where unusable; logarithms unless the metric is a share."""
    sides = [release.launches.get(case, []) if usable[i] else [] for i, case in enumerate(cases)]
    if metric.kind != "share":
        return np.log(matrix(sides, metric.name)) if any(sides) else np.full((len(cases), 1), np.nan)
    widest = max((len(side) for side in sides), default=0) or 1
    points = np.full((len(cases), widest), np.nan)
    for i, side in enumerate(sides):
        values = [v for launch in side if (v := launch.values.get(metric.name)) is not None]
        points[i, : len(values)] = values
    return points


def _trend(
    metric: Metric, releases: Sequence[Release], cases: Sequence[str], points: list[np.ndarray], fdr: float
) -> Trend:
    if metric.kind == "noisy":
        means, variances, df = _noise(points)
    else:
        means = np.array([[_middle(row) for row in release] for release in points]).T
        variances, df = np.zeros_like(means), np.full(len(cases), np.inf)
    values = means if metric.kind == "share" else np.exp(means)
    rows = [[None if math.isnan(x) else x for x in row] for row in values.tolist()]
    lines = [Line(case, row) for case, row in zip(cases, rows, strict=True)]
    tested = metric.kind == "exact" or (metric.kind == "noisy" and not np.isnan(variances).all())
    if metric.kind == "exact":
        for line, row in zip(lines, means, strict=True):
            line.changes = _steps(row, math.log1p(metric.min_effect))
    elif tested:
        _mark(lines, means, variances, df, math.log1p(metric.min_effect), fdr)
    return Trend(metric, [release.label for release in releases], lines, tested, _overall(lines, metric))


def _middle(row: np.ndarray) -> float:
    known = row[~np.isnan(row)]
    return float(np.median(known)) if len(known) else math.nan


def _noise(points: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means and their variances, cases × releases, and degrees of freedom by case."""
    pool = fit(points)
    means = np.array([side.mean for side in pool.sides]).T
    counts = np.array([side.count for side in pool.sides]).T
    if not math.isnan(pool.prior_variance):
        scales = np.array([side.scale for side in pool.sides])
        with np.errstate(divide="ignore", invalid="ignore"):
            return means, pool.variance[:, None] * scales / counts, pool.df
    steps = np.diff(means, axis=1)
    known = np.abs(steps[~np.isnan(steps)])
    if means.shape[1] < MIN_UNREPEATED or not len(known):
        return means, np.full_like(means, np.nan), np.zeros(len(means))
    # A difference of two normal values has twice their variance; 0.6745 is the normal quartile.
    variance = (float(np.median(known)) / stats.norm.ppf(0.75)) ** 2 / 2
    return means, np.full_like(means, variance), np.full(len(means), max(1.0, len(known) / 2))


def _steps(row: np.ndarray, least: float) -> list[int]:
    """Where an exact value leaves the level it had."""
    level, changes = math.nan, []
    for i, value in enumerate(row):
        if math.isnan(value):
            continue
        if not math.isnan(level) and abs(value - level) > least:
            changes.append(i)
        if math.isnan(level) or changes[-1:] == [i]:
            level = value
    return changes


def _mark(
    lines: list[Line], means: np.ndarray, variances: np.ndarray, df: np.ndarray, least: float, fdr: float
) -> None:
    first = [_best(row, v, d) for row, v, d in zip(means, variances, df, strict=True)]
    p_values = np.array([p for _, p, _ in first])
    q_values = adjust(p_values)
    if not (q_values <= fdr).any():
        return
    # Benjamini-Hochberg's own threshold: what a further p-value would have had to meet.
    cutoff = fdr * float((q_values <= fdr).sum()) / float((~np.isnan(q_values)).sum())
    for line, row, v, d in zip(lines, means, variances, df, strict=True):
        line.changes = sorted(_segment(row, v, d, 0, len(row), cutoff, least))


def _segment(row: np.ndarray, v: np.ndarray, df: float, start: int, end: int, cutoff: float, least: float) -> list[int]:
    at, p, effect = _best(row[start:end], v[start:end], df)
    if math.isnan(p) or p > cutoff or abs(effect) < least:
        return []
    at += start
    return [at, *_segment(row, v, df, start, at, cutoff, least), *_segment(row, v, df, at, end, cutoff, least)]


def _best(row: np.ndarray, variances: np.ndarray, df: float) -> tuple[int, float, float]:
    """The split with the largest standardised step: its index, p-value (Bonferroni over the splits) and size."""
    there = np.flatnonzero(~np.isnan(row) & ~np.isnan(variances) & (variances >= 0))
    if len(there) < 2 or not df > 0:
        return 0, math.nan, 0.0
    x = row[there]
    weights = 1 / np.maximum(variances[there], 1e-18)
    left, sums = np.cumsum(weights)[:-1], np.cumsum(weights * x)[:-1]
    right, rest = weights.sum() - left, (weights * x).sum() - sums
    effect = rest / right - sums / left
    t = np.abs(effect) / np.sqrt(1 / left + 1 / right)
    best = int(t.argmax())
    p = min(1.0, 2 * float(stats.t.sf(t[best], min(df, 1e6))) * len(t))
    return int(there[best + 1]), p, float(effect[best])


def _overall(lines: Sequence[Line], metric: Metric) -> list[float | None]:
    whole = [line.ratios for line in lines if all(r is not None and r > 0 for r in line.ratios)]
    if not whole or metric.kind == "share":
        return []
    return [math.exp(statistics.fmean(math.log(r) for r in column if r)) for column in zip(*whole, strict=True)]
