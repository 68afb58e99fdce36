"""Releases in memory: launches with step times of a known truth, without files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.analysis.compare import compare
from bench.analysis.launch import Launch
from bench.analysis.metrics import choose
from bench.analysis.release import Release
from bench.analysis.verdict import Comparison, Row

Noise = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Unit normal noise."""
    return rng.standard_normal(shape)


def seconds(
    rng: np.random.Generator, cases: int, launches: int, factor: float | np.ndarray = 1.0,
    sd: float | np.ndarray = 0.03, noise: Noise = normal,
) -> np.ndarray:  # fmt: skip
    """Step times, cases × launches: the same true time of each case for every call, a factor, and noise."""
    true = 0.05 * 1.5 ** (np.arange(cases) % 9)
    spread = np.broadcast_to(np.asarray(sd, float), cases)[:, None]
    return (true * factor)[:, None] * np.exp(spread * noise(rng, (cases, launches)))


def slowed(cases: int, share: float, factor: float = 1.1) -> np.ndarray:
    """Factors of a release in which every k-th case is slower, so that `share` of them are."""
    factors = np.ones(cases)
    factors[:: round(1 / share)] = factor
    return factors


def launch(case: str, repeat: int, **values: float) -> Launch:
    """An ok launch with the given metrics."""
    return Launch(case, repeat, "ok", None, f"cases/{case}/r{repeat}/case.json", {"steps": 20}, {}, values)


def release(label: str, times: np.ndarray, **values: float) -> Release:
    """A release with these step times; `values` are added to every launch."""
    found = Release(label, label)
    for i, row in enumerate(times):
        case = f"case{i:03d}"
        there = [(r, t) for r, t in enumerate(row.tolist(), 1) if not np.isnan(t)]
        if there:
            found.launches[case] = [launch(case, r, step_s=t, **values) for r, t in there]
    return found


def judged(before: np.ndarray, after: np.ndarray, metrics: str = "step_s", **options: float) -> Comparison:
    """Compare two releases made of step times."""
    return compare(release("old", before), release("new", after), choose(metrics), **options)


def by_case(comparison: Comparison, metric: str = "step_s") -> dict[str, Row]:
    """Rows of one metric."""
    return {row.case: row for row in comparison.rows if row.metric == metric}
