"""Tests of a noisy metric: the ratio of two releases, case by case and over the whole set.

The unit is the launch. Steps inside one launch are correlated and never count as repeats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.analysis.pooling import Pool, Side, fit

MIN_LAUNCHES = 3
"""Launches a side below which a noisy metric has no verdict: with two, an outlier cannot be told from a change."""
TRUSTED_LAUNCHES = 5
"""Launches a side from which the ordinary interval may rule a change out."""
SCARCE_LEVEL = 1e-4
"""One-sided level at which fewer launches may rule a change out: the noise is then mostly borrowed from other cases."""
CONFIDENCE = 0.95
"""Of the intervals that are shown."""
UNEQUAL_LEVEL = 0.001
"""Level at which the two sides of one case count as unequally noisy."""
SET_LEVEL = 0.01
"""Level of the test over the whole set."""


@dataclass(frozen=True)
class Ratios:
    """One metric of two releases, one entry a case. Effects are logarithms of candidate ÷ baseline."""

    effect: np.ndarray
    error: np.ndarray
    """Standard error of `effect`; NaN where noise is unknown."""
    df: np.ndarray
    tested: np.ndarray
    """Bool: enough launches on both sides and a known noise."""
    p: np.ndarray
    """Two-sided; NaN where not tested."""
    q: np.ndarray
    """`p` after Benjamini-Hochberg over the tested cases; NaN where not tested."""
    sides: tuple[Side, Side]
    pool: Pool

    def interval(self, tail: float) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the effect, each missed with probability `tail`."""
        half = stats.t.isf(tail, np.where(self.df > 0, np.minimum(self.df, 1e6), np.nan)) * self.error
        return self.effect - half, self.effect + half

    def rules_out(self, change: float, fdr: float) -> np.ndarray:
        """Cases in which a change of ± `change` (relative) is excluded, by two one-sided tests at level `fdr`."""
        # A launch that was set aside was made all the same.
        scarce = np.minimum(*(side.count + side.aside.sum(1) for side in self.sides)) < TRUSTED_LAUNCHES
        tail = np.where(scarce, SCARCE_LEVEL, fdr)
        low, high = self.interval(tail)  # type: ignore[arg-type]
        bound = np.log1p(change)
        return self.tested & (low > -bound) & (high < bound)


@dataclass(frozen=True)
class SetWide:
    """The geometric mean of all ratios of one metric, tested with launch numbers (rounds) as the unit."""

    ratio: float
    low: float | None
    """Bounds of the ratio at `CONFIDENCE`; null where it was not tested."""
    high: float | None
    p: float | None
    cases: int


def compare(baseline: np.ndarray, candidate: np.ndarray) -> Ratios:
    """Test every case of a noisy metric.

    Args:
        baseline: cases × launches, positive values; NaN where missing.
        candidate: the same cases in the same order, any number of launches.
    """
    return contrast(fit([np.log(baseline), np.log(candidate)]), 0, 1)


def contrast(pool: Pool, baseline: int, candidate: int) -> Ratios:
    """Test two releases of a fitted pool by a t-test with moderated variances.

    Where the two sides of one case clearly differ in noise (F-test at 0.1 %) and its own launches give the larger
    error, that case falls back to Welch's test on them.
    """
    b, c = pool.sides[baseline], pool.sides[candidate]
    with np.errstate(invalid="ignore", divide="ignore"):
        square = pool.variance * (b.scale / b.count + c.scale / c.count)
    df = pool.df.astype(float)
    own_square, own_df, unequal = _welch(b, c)
    unequal &= own_square > square  # chance makes a quiet side too: never take it for less noise
    square, df = np.where(unequal, own_square, square), np.where(unequal, own_df, df)
    effect = c.mean - b.mean
    enough = (b.count >= MIN_LAUNCHES) & (c.count >= MIN_LAUNCHES)
    tested = enough & ~np.isnan(square) & (df > 0) & ~np.isnan(effect)
    error = np.sqrt(square)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Launches that agree to the last digit: any difference is real, and none is none.
        t = np.where(effect == 0, 0.0, np.abs(effect) / error)
        p = np.where(tested, 2 * stats.t.sf(t, np.minimum(df, 1e6)), np.nan)
    return Ratios(effect, error, df, tested, p, adjust(p), (b, c), pool)


def _welch(b: Side, c: Side) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Squared error and Satterthwaite's degrees of freedom from a case's own launches, and where to use them."""
    df_b, df_c = b.count - 1.0, c.count - 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        part_b, part_c = b.variance / b.count, c.variance / c.count
        df = (part_b + part_c) ** 2 / (part_b**2 / df_b + part_c**2 / df_c)
        ratio = (c.variance / c.scale) / (b.variance / b.scale)
        tail = np.fmin(stats.f.sf(ratio, df_c, df_b), stats.f.cdf(ratio, df_c, df_b))
    return part_b + part_c, df, np.nan_to_num(2 * tail, nan=1.0) < UNEQUAL_LEVEL


def adjust(p: np.ndarray) -> np.ndarray:
    """Benjamini-Hochberg over the p-values that are not NaN."""
    q, known = np.full(len(p), np.nan), ~np.isnan(p)
    if known.any():
        q[known] = stats.false_discovery_control(p[known], method="bh")
    return q


def set_wide(ratios: Ratios) -> SetWide | None:
    """Test the geometric mean over the tested cases; untested where there are none, None with fewer than two cases.

    Its error is the larger of two: as if all launches were independent, and as if the launches of one round shared
    their noise. Launch number k of every case counts as one round, which interleaved runs make true.
    """
    b, c = ratios.sides
    used = ratios.tested
    if used.sum() < 2 or min(b.rounds, c.rounds) < MIN_LAUNCHES:
        effects = ratios.effect[~np.isnan(ratios.effect)]
        return SetWide(float(np.exp(effects.mean())), None, None, None, len(effects)) if len(effects) > 1 else None
    effect, cases = float(ratios.effect[used].mean()), int(used.sum())
    parts = [(side.round_variance / side.rounds, side.rounds - 1) for side in (b, c)]
    square = max(sum(part for part, _ in parts), float((ratios.error[used] ** 2).sum()) / cases**2)
    spread = sum(part**2 / df for part, df in parts)
    df = sum(part for part, _ in parts) ** 2 / spread if spread else float(min(df for _, df in parts))
    error = float(np.sqrt(square))
    p = 2 * float(stats.t.sf(abs(effect) / error, df)) if error else float(effect == 0)
    half = float(stats.t.isf((1 - CONFIDENCE) / 2, df)) * error
    return SetWide(float(np.exp(effect)), float(np.exp(effect - half)), float(np.exp(effect + half)), p, cases)


def more_launches(ratios: Ratios, change: float, found: float = 0.95, level: float = 0.005) -> np.ndarray:
    """How many further launches a side each case needs before a change of `change` is found or ruled out.

    Args:
        ratios: the test.
        change: relative.
        found: probability of finding it.
        level: two-sided level that a case of a large set has to meet.

    Returns:
        At least 1; where the noise is unknown, as many as reach `TRUSTED_LAUNCHES`.
    """
    b, c = ratios.sides
    variance = ratios.pool.variance * max(b.scale, c.scale)
    z = stats.norm.isf(level / 2) + stats.norm.isf(1 - found)
    needed = np.ceil(2 * variance * (z / np.log1p(change)) ** 2)
    needed = np.fmax(needed, TRUSTED_LAUNCHES)  # fmax: unknown noise asks for the least that is trusted
    return np.maximum(needed - np.minimum(b.count, c.count), 1).astype(int)
