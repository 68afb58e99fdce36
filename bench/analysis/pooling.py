"""How noisy are launches? Variances of all cases of one release, moderated towards each other.

A case with five launches knows its own noise badly; 200 such cases know the typical noise well. Empirical Bayes puts
the two together: each variance is drawn towards a common one, by as much as the variances agree. Where they agree
(homogeneous noise) this is full pooling; where they do not, each case keeps its own variance and few degrees of
freedom, so that a violated assumption costs power and never truth.

Smyth, "Linear models and empirical Bayes methods for assessing differential expression in microarray experiments"
(2004), section 6.2: the fit of prior variance s0² and prior degrees of freedom d0 by the moments of log s².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

OUTLIER_LEVEL = 0.01
"""Chance that any launch of a release is set aside although noise is normal."""
MIN_REST = 3
"""Launches that must remain when one is set aside."""
QUIET_LEVEL = 0.05
"""Level at which the remaining launches count as noisy themselves, so that none is set aside."""
MIN_BULK = 20
"""Cases from which quantiles of their variances mean something."""
BULK_DF = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 1e6])
"""Prior degrees of freedom that are tried."""
SCALE_LEVEL = 0.01
"""Level at which one release counts as noisier than another."""


@dataclass(frozen=True)
class Side:
    """The launches of one release in one metric, on the logarithmic scale. Arrays have one entry a case."""

    mean: np.ndarray
    """Mean of the launches that count; NaN without any."""
    count: np.ndarray
    """Launches that count."""
    variance: np.ndarray
    """Sample variance of the case's own launches; NaN below two."""
    aside: np.ndarray
    """Bool, cases × launches: set aside because it stands far apart from the others of its case."""
    shared: float
    """Part of the variance that the cases have in common by launch number (0 to 1): drift of the machine."""
    round_variance: float
    """Variance of a launch number's mean over all cases."""
    rounds: int
    """Launch numbers that any case has."""
    scale: float = 1.0
    """Noise (variance) of this release relative to the others; 1 unless they clearly differ."""


@dataclass(frozen=True)
class Pool:
    """What all launches together say of the noise."""

    sides: tuple[Side, ...]
    """One a release."""
    variance: np.ndarray
    """Moderated variance of one launch of each case at scale 1; NaN where nobody knows it."""
    df: np.ndarray
    """Degrees of freedom of `variance`."""
    prior_variance: float
    """Typical variance of one launch (s0²); NaN where no case has two launches."""
    prior_df: float
    """Degrees of freedom that the other cases add to each case (d0); infinite where variances agree."""


def fit(sides: Sequence[np.ndarray]) -> Pool:
    """Estimate the noise between launches.

    Args:
        sides: for each release cases × launches, logarithms of the metric; NaN where a launch is missing. Rows are
            the same cases in every release; the number of launches may differ.

    Assumes that launches of one case are exchangeable and that noise is roughly normal on the logarithmic scale.
    Checked and answered: unequal variances of cases (moderation) and of releases (scale), a launch far apart (set
    aside), noise shared between the cases of a round (fewer degrees of freedom).
    """
    quiet = np.array([_quiet(logs) for logs in sides])
    # A case that is noisy in another release too has a noisy launch, not an outlying one.
    others = [np.delete(quiet, i, axis=0).all(0) for i in range(len(sides))]
    seen = _scaled([_side(logs, eligible) for logs, eligible in zip(sides, others, strict=True)])
    df_of = [np.maximum(side.count - 1, 0) for side in seen]
    df = np.sum(df_of, axis=0)
    squares = np.sum([d * np.nan_to_num(s.variance) / s.scale for d, s in zip(df_of, seen, strict=True)], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.where(df > 0, squares / df, np.nan)
    prior_df, prior = _prior(df, own)
    shared = max(side.shared for side in seen)
    # All cases together can know no more than this; with shared noise they repeat each other.
    most = df.sum() / max(1.0, 1 + (int((df > 0).sum()) - 1) * shared)
    return Pool(seen, _moderate(own, df, prior_df, prior), np.minimum(df + prior_df, most), prior, prior_df)


def _quiet(logs: np.ndarray) -> np.ndarray:
    """Cases whose launches agree as well as those of other cases do, or that cannot say."""
    count, variance = _spread(logs)
    prior_df, prior = _bulk(count - 1, variance)
    return _agree(variance, count - 1, prior_df, prior)


def _agree(variance: np.ndarray, df: np.ndarray, prior_df: float, prior: float) -> np.ndarray:
    if np.isnan(prior) or prior == 0 or prior_df == 0:
        return np.ones(len(variance), bool)
    tail = stats.f.sf(variance / prior, np.where(df > 0, df, np.nan), min(prior_df, 1e6))
    return np.isnan(tail) | (tail > QUIET_LEVEL)


def _side(logs: np.ndarray, eligible: np.ndarray) -> Side:
    aside = np.zeros(logs.shape, bool)
    for _ in range(2):  # the second pass sees variances that the first one's outliers no longer inflate
        kept = np.where(aside, np.nan, logs)
        count, variance = _spread(kept)
        aside |= _apart(kept, *_bulk(count - 1, variance)) & eligible[:, None]
    kept = np.where(aside, np.nan, logs)
    count, variance = _spread(kept)
    return Side(_mean(kept), count, variance, aside, *_shared(kept))


def _scaled(sides: list[Side]) -> tuple[Side, ...]:
    """Give releases their own scale of noise where paired variances show it (t-test over the cases at 1 %)."""
    first = _log_variance(sides[0])
    done = [sides[0]]
    for side in sides[1:]:
        difference = _log_variance(side) - first
        difference = difference[~np.isnan(difference)]
        differs = len(difference) > 4 and stats.ttest_1samp(difference, 0).pvalue < SCALE_LEVEL
        done.append(replace(side, scale=float(np.exp(difference.mean())) if differs else 1.0))
    return tuple(done)


def _log_variance(side: Side) -> np.ndarray:
    """Logarithms of the cases' variances, unbiased whatever the number of launches; NaN where unknown or zero."""
    usable = side.variance > 0
    df = np.where(usable, side.count - 1.0, 1.0)
    return np.where(usable, np.log(np.where(usable, side.variance, 1.0)) - _bias(df), np.nan)


def _bias(df: np.ndarray) -> np.ndarray:
    """Mean of log(s² / σ²) of a sample variance with `df` degrees of freedom."""
    return special.digamma(df / 2) - np.log(df / 2)


def _mean(logs: np.ndarray) -> np.ndarray:
    there = ~np.isnan(logs)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(there, logs, 0).sum(1) / there.sum(1)


def _spread(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of launches and their sample variance (NaN below two)."""
    count = (~np.isnan(logs)).sum(1)
    squares = np.nansum((logs - _mean(logs)[:, None]) ** 2, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return count, np.where(count > 1, squares / (count - 1), np.nan)


def _prior(df: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    """Prior degrees of freedom and variance from the moments of log s² (Smyth 2004, section 6.2)."""
    known = df > 0
    if not known.any():
        return 0.0, float("nan")
    s2, df = variance[known], df[known].astype(float)
    pooled = float((s2 * df).sum() / df.sum())
    if known.sum() < 3 or pooled == 0:  # two variances cannot tell how much variances differ
        return 0.0, pooled
    s2 = np.maximum(s2, 1e-5 * np.median(s2[s2 > 0]))  # equal launches: log 0 would be the whole fit
    e = np.log(s2) - _bias(df)
    excess = e.var(ddof=1) - special.polygamma(1, df / 2).mean()
    if excess <= 0:
        return float("inf"), pooled
    d0 = 2 * _trigamma_inverse(float(excess))
    return d0, float(np.exp(e.mean() + special.digamma(d0 / 2) - np.log(d0 / 2)))


def _bulk(df: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    """The prior of the quieter half of the cases, which a few outlying launches cannot inflate.

    Matches median and lowest decile of the variances to those of s0² F(df, d0); few cases go by `_prior`.
    """
    known = df > 0
    if known.sum() < MIN_BULK:
        return _prior(df, variance)
    common = np.bincount(df[known]).argmax()
    s2 = variance[df == common]
    low, middle = np.quantile(s2[s2 > 0], [0.1, 0.5]) if (s2 > 0).any() else (0.0, 0.0)
    if (df == common).sum() < MIN_BULK or low == 0:
        return _prior(df, variance)
    expected = stats.f.ppf([[0.5], [0.1]], common, BULK_DF)
    nearest = int(np.abs(np.log(expected[0] / expected[1]) - np.log(middle / low)).argmin())
    return float(BULK_DF[nearest]), float(middle / expected[0, nearest])


def _trigamma_inverse(y: float) -> float:
    """Solve trigamma(x) = y by Newton's method on 1 / trigamma, which is nearly linear."""
    if y > 1e7:
        return y**-0.5
    if y < 1e-6:
        return 1 / y
    x = 0.5 + 1 / y
    for _ in range(50):
        value = special.polygamma(1, x)
        step = value * (1 - value / y) / special.polygamma(2, x)
        x += step
        if -step / x < 1e-8:
            break
    return float(x)


def _moderate(variance: np.ndarray, df: np.ndarray, prior_df: float, prior: float) -> np.ndarray:
    own = np.where(df > 0, variance, 0.0)
    if np.isinf(prior_df):
        return np.full(len(own), prior)
    with np.errstate(invalid="ignore", divide="ignore"):
        mixed = (df * own + (prior_df * prior if prior_df else 0.0)) / (df + prior_df)
    return np.where(df + prior_df > 0, mixed, np.nan)


def _apart(logs: np.ndarray, prior_df: float, prior: float) -> np.ndarray:
    """Mark at most one launch a case that its fellows, and the noise of all cases, rule out.

    A deleted residual: each launch against the mean of the others, in units of a noise that it has no part in. The
    others must agree among themselves as launches of other cases do; else the case is noisy, not its launch.
    """
    marks = np.zeros(logs.shape, bool)
    total = int((~np.isnan(logs)).sum())
    if np.isnan(prior) or prior == 0 or not ((~np.isnan(logs)).sum(1) > MIN_REST).any():
        return marks
    p_values = np.full(logs.shape, np.inf)
    for j in range(logs.shape[1]):
        rest = np.delete(logs, j, axis=1)
        n, variance = _spread(rest)
        df = np.maximum(n - 1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            t = (logs[:, j] - _mean(rest)) / np.sqrt(_moderate(variance, df, prior_df, prior) * (1 + 1 / n))
        usable = (n >= MIN_REST) & _agree(variance, df, prior_df, prior) & ~np.isnan(t)
        p_values[:, j] = np.where(usable, 2 * stats.t.sf(np.abs(t), np.minimum(df + prior_df, 1e6)), np.inf)
    rows, worst = np.arange(len(logs)), p_values.argmin(1)
    hit = p_values[rows, worst] < OUTLIER_LEVEL / total
    marks[rows[hit], worst[hit]] = True
    return marks


def _shared(logs: np.ndarray) -> tuple[float, float, int]:
    """Share of the variance that all cases of a round have in common, variance of the rounds' means, and rounds."""
    residual = logs - _mean(logs)[:, None]
    there = (~np.isnan(residual)) & ((~np.isnan(logs)).sum(1) > 1)[:, None]
    per_round = there.sum(0)
    used = per_round > 0
    if used.sum() < 2:
        return 0.0, float("nan"), int(used.sum())
    residual = np.where(there, residual, 0.0)
    means = residual[:, used].sum(0) / per_round[used]
    between = float(means.var(ddof=1))
    df = per_round.sum() - there.any(1).sum()
    total = float((residual**2).sum() / max(df, 1))
    cases = float(per_round[used].mean())
    if total == 0 or cases < 2:
        return 0.0, between, int(used.sum())
    # between = shared + own / cases, total = shared + own
    shared = (between - total / cases) / (1 - 1 / cases)
    return float(np.clip(shared / total, 0, 1)), between, int(used.sum())
