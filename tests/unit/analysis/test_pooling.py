"""The noise model against what it claims."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bench.analysis.pooling import _prior, _trigamma_inverse, fit
from bench.analysis.ratios import compare


def test_prior_recovers_a_scaled_inverse_chi_square():
    rng = np.random.default_rng(0)
    d0, s0, df = 8.0, 0.001, np.full(4000, 4)
    variance = s0 * d0 / rng.chisquare(d0, 4000) * rng.chisquare(4, 4000) / 4
    found_df, found = _prior(df, variance)
    assert found_df == pytest.approx(d0, rel=0.15) and found == pytest.approx(s0, rel=0.05)


def test_equal_variances_pool_wholly_and_two_cases_not_at_all():
    rng = np.random.default_rng(1)
    pool = fit([0.03 * rng.standard_normal((300, 5)) for _ in range(2)])
    assert pool.df.min() > 50
    assert np.sqrt(pool.prior_variance) == pytest.approx(0.03, rel=0.05)
    assert fit([rng.standard_normal((2, 5)), rng.standard_normal((2, 5))]).prior_df == 0


@pytest.mark.parametrize("x", [0.1, 1.0, 7.0, 300.0])
def test_trigamma_inverse(x):
    from scipy.special import polygamma

    assert _trigamma_inverse(float(polygamma(1, x))) == pytest.approx(x, rel=1e-6)


def test_shared_noise_costs_degrees_of_freedom():
    rng = np.random.default_rng(2)
    drift = [0.03 * rng.standard_normal((1, 5)) + 0.003 * rng.standard_normal((200, 5)) for _ in range(2)]
    pool = fit(drift)
    assert max(side.shared for side in pool.sides) > 0.8
    assert pool.df.max() < 20  # 1,600 if the cases were independent


def test_without_noise_any_difference_is_real_and_none_is_none():
    before = np.tile([[1.0], [2.0], [3.0]], (1, 5))
    after = before * np.array([[1.0], [1.1], [1.0]])
    p = compare(before, after).p
    assert p.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("launches", [(5, 5), (8, 4), (3, 6)])
def test_p_values_are_uniform_where_nothing_changed(launches):
    rng = np.random.default_rng(3)
    p = np.concatenate([
        compare(*(np.exp(0.03 * rng.standard_normal((200, n))) for n in launches)).p for _ in range(20)
    ])  # fmt: skip
    assert stats.kstest(p, "uniform").pvalue > 0.001
