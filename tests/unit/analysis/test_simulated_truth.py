"""Simulated truth with fixed seeds: 200 cases, 3 % noise between launches. `benchmarks/compare_truth.py` runs more."""

from __future__ import annotations

import numpy as np
import pytest

from bench.analysis.verdict import exit_code
from tests.unit.analysis.releases import Noise, by_case, judged, normal, seconds, slowed

CASES = 200


def count(launches: int, factor: float | np.ndarray = 1.0, sets: int = 12, seed: int = 7, **noise) -> dict[str, float]:
    """Shares of verdicts over several sets, apart for cases that are slower and cases that are not."""
    rng, totals = np.random.default_rng(seed), {}
    slow = np.broadcast_to(np.asarray(factor) > 1, CASES)
    for _ in range(sets):
        result = judged(seconds(rng, CASES, launches, **noise), seconds(rng, CASES, launches, factor, **noise))
        for is_slow, row in zip(slow, by_case(result).values(), strict=True):
            key = ("slow" if is_slow else "same", row.verdict)
            totals[key] = totals.get(key, 0) + 1
    sizes = {"slow": slow.sum() * sets, "same": (~slow).sum() * sets}
    shares = {f"{kind} {verdict}": n / sizes[kind] for (kind, verdict), n in totals.items()}
    changed = totals.get(("same", "regressed"), 0) + totals.get(("same", "improved"), 0)
    right = totals.get(("slow", "regressed"), 0)
    return shares | {"false": changed / sets, "fdr": changed / max(changed + right, 1)}


def test_nothing_changed_gives_at_most_one_false_alarm_in_200_cases():
    found = count(5, sets=30)
    assert found["false"] <= 1
    assert found["false"] <= 0.2  # a set in five at most, of which each has one
    assert found["same unchanged"] > 0.99


def test_a_tenth_slower_in_one_case_of_twenty_is_found_at_5_launches():
    found = count(5, slowed(CASES, 0.05), sets=30)
    assert found["slow regressed"] >= 0.95
    assert found["fdr"] <= 0.075  # 5 %, and the error of 300 slow cases
    assert found.get("slow improved", 0) == 0


def test_every_case_a_tenth_slower_is_not_normalised_away():
    found = count(5, 1.1, sets=5)
    assert found["slow regressed"] >= 0.99


def test_three_launches_are_inconclusive_rather_than_wrong():
    found = count(3, slowed(CASES, 0.05), sets=20)
    assert found["slow regressed"] + found["slow inconclusive"] == 1
    assert found["false"] <= 1
    assert found["same unchanged"] + found["same inconclusive"] > 0.995


def test_one_launch_is_inconclusive_with_its_ratio():
    rng = np.random.default_rng(3)
    before, after = seconds(rng, CASES, 1), seconds(rng, CASES, 1, 1.2)
    result = judged(before, after)
    rows = list(by_case(result).values())
    assert {row.verdict for row in rows} == {"inconclusive"}
    assert [row.ratio for row in rows] == pytest.approx((after / before)[:, 0].tolist())
    assert all(row.more >= 2 and row.low is None for row in rows)
    assert result.set_rows[0].verdict == "inconclusive" and result.set_rows[0].ratio == pytest.approx(1.2, rel=0.01)
    assert exit_code(result, None) == 3


def test_a_fifth_slower_everywhere_fails_the_set():
    rng = np.random.default_rng(4)
    result = judged(seconds(rng, 20, 5), seconds(rng, 20, 5, 1.2), metrics="step_s,samples_per_s")
    assert exit_code(result, "ok") == 1
    assert {row.metric: row.verdict for row in result.set_rows} == {"step_s": "regressed"}
    assert result.set_rows[0].low < 1.2 < result.set_rows[0].high


def student(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Heavy tails of unit variance (three degrees of freedom)."""
    return rng.standard_t(3, shape) / np.sqrt(3)


def skewed(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Launches that are sometimes much slower and never much faster."""
    return rng.exponential(size=shape) - 1


def shared(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Half of the variance is common to all cases of a round: drift of the machine."""
    return np.sqrt(0.5) * (rng.standard_normal((1, shape[1])) + rng.standard_normal(shape))


@pytest.mark.parametrize("noise", [student, skewed, shared], ids=["heavy tails", "skewed", "shared by a round"])
def test_noise_that_is_not_normal_or_not_independent_gives_few_false_alarms(noise: Noise):
    assert count(5, sets=15, noise=noise)["false"] <= 1
    assert count(5, slowed(CASES, 0.05), sets=10, noise=noise)["fdr"] <= 0.08


def test_cases_of_unequal_noise_keep_their_own_and_lose_power_not_truth():
    sd = np.where(np.arange(CASES) % 5 == 1, 0.10, 0.02)  # one case in five is five times as noisy
    found = count(5, slowed(CASES, 0.05), sets=20, sd=sd)
    assert found["fdr"] <= 0.08
    rng = np.random.default_rng(9)
    result = judged(seconds(rng, CASES, 5, sd=sd), seconds(rng, CASES, 5, sd=sd))
    assert result.assumptions[0].prior_df < 10  # the cases borrow little: their variances do not agree
    noisy = [row for i, row in enumerate(by_case(result).values()) if sd[i] > 0.05]
    assert np.mean([row.verdict == "inconclusive" for row in noisy]) > 0.5


def test_a_noisier_release_is_seen_as_such():
    rng = np.random.default_rng(10)
    result = judged(seconds(rng, CASES, 5, sd=0.01), seconds(rng, CASES, 5, sd=0.04))
    before, after = result.assumptions[0].noise
    assert before == pytest.approx(0.01, rel=0.15) and after == pytest.approx(0.04, rel=0.15)
    assert sum(row.verdict in ("regressed", "improved") for row in result.rows) <= 1


def test_an_outlying_launch_is_set_aside_and_named():
    rng = np.random.default_rng(11)
    factors = slowed(CASES, 0.05)
    before, after = seconds(rng, CASES, 5), seconds(rng, CASES, 5, factors)
    struck = np.arange(CASES) % 10 == 0
    after[struck, 2] *= 1.6
    result = judged(before, after)
    rows = list(by_case(result).values())
    same = [row.verdict for i, row in enumerate(rows) if struck[i] and factors[i] == 1]
    slow = [row.verdict for i, row in enumerate(rows) if struck[i] and factors[i] > 1]
    assert set(same) <= {"unchanged", "inconclusive"} and same.count("unchanged") >= 0.7 * len(same)
    assert slow.count("regressed") >= 0.7 * len(slow) and slow.count("unchanged") <= 1
    aside = {name for name, label, number in result.assumptions[0].aside if (label, number) == ("new", 3)}
    assert aside <= {f"case{i:03d}" for i in np.flatnonzero(struck)} and len(aside) >= 0.7 * struck.sum()


def test_different_and_missing_launches():
    rng = np.random.default_rng(12)
    factors = slowed(CASES, 0.05, 1.2)
    before, after = seconds(rng, CASES, 8), seconds(rng, CASES, 4, factors)
    before[rng.random(before.shape) < 0.2] = np.nan
    after[1, 1:] = np.nan  # one launch left
    rows = by_case(judged(before, after))
    assert rows["case001"].verdict == "inconclusive" and rows["case001"].launches[1] == 1
    slow = [row.verdict for i, row in enumerate(rows.values()) if factors[i] > 1]
    assert np.mean([verdict == "regressed" for verdict in slow]) >= 0.9
    assert sum(row.verdict == "regressed" for row in rows.values()) <= len(slow) + 1


@pytest.mark.parametrize("cases", [1, 2, 4, 12])
def test_few_cases_borrow_little_and_stay_honest(cases: int):
    rng, sets = np.random.default_rng(13), 150
    alarms = found = 0
    for _ in range(sets):
        before = seconds(rng, cases, 5)
        rows = judged(before, seconds(rng, cases, 5)).rows
        alarms += any(row.verdict in ("regressed", "improved") for row in rows)
        rows = judged(before, seconds(rng, cases, 5, 1.2)).rows
        found += np.mean([row.verdict == "regressed" for row in rows])
    assert alarms / sets <= 0.09  # 5 %, and the error of 150 sets
    assert found / sets >= 0.97


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(14)
    covered = []
    for _ in range(10):
        result = judged(seconds(rng, CASES, 5), seconds(rng, CASES, 5, 1.05))
        covered += [row.low <= 1.05 <= row.high for row in result.rows]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_a_small_change_that_is_real_is_said_to_be_below_the_threshold():
    rng = np.random.default_rng(15)
    result = judged(seconds(rng, 50, 6, sd=0.001), seconds(rng, 50, 6, 1.01, sd=0.001, noise=normal))
    assert {(row.verdict, row.note) for row in result.rows} == {("unchanged", "small_change")}
