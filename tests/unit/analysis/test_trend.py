"""Series of releases: change points where the level changed, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from bench.analysis.metrics import choose
from bench.analysis.trend import trends
from tests.unit.analysis.releases import release, seconds

CASES = 30


def follow(times, metrics="step_s", **values):
    releases = [release(f"v{i}", t, **{k: v[i] for k, v in values.items()}) for i, t in enumerate(times)]
    return trends(releases, choose(metrics), (), 0.05)


def test_steps_up_and_down_are_marked_where_they_happen():
    rng = np.random.default_rng(0)
    levels = [1.0, 1.0, 1.2, 1.2, 1.05]
    trend = follow([seconds(rng, CASES, 5, level) for level in levels])[0]
    marks = [line.changes for line in trend.lines]
    assert np.mean([m == [2, 4] for m in marks]) > 0.85
    assert all(2 in m for m in marks)
    assert trend.overall == pytest.approx(levels, rel=0.02)


def test_nothing_is_marked_where_nothing_changed():
    rng = np.random.default_rng(1)
    series = [follow([seconds(rng, CASES, 5) for _ in range(6)])[0] for _ in range(10)]
    assert sum(bool(line.changes) for trend in series for line in trend.lines) <= 2


def test_a_long_series_of_single_launches_knows_its_noise_a_short_one_does_not():
    rng = np.random.default_rng(2)
    long = follow([seconds(rng, CASES, 1, 1.25 if i > 5 else 1.0) for i in range(12)])[0]
    assert long.tested and np.mean([line.changes == [6] for line in long.lines]) > 0.8
    short = follow([seconds(rng, CASES, 1, 1 + 0.25 * (i > 1)) for i in range(4)])[0]
    assert not short.tested and not any(line.changes for line in short.lines)


def test_bytes_change_exactly():
    rng = np.random.default_rng(3)
    times = [seconds(rng, 3, 1) for _ in range(4)]
    trend = follow(times, "checkpoint_bytes", checkpoint_bytes=[100.0, 100.0, 110.0, 110.0])[0]
    assert [line.changes for line in trend.lines] == [[2]] * 3


def test_a_case_that_comes_late_has_gaps_not_zeros():
    rng = np.random.default_rng(4)
    times = [seconds(rng, 3, 5) for _ in range(3)]
    times[0][1] = np.nan
    line = next(x for x in follow(times)[0].lines if x.case == "case001")
    assert line.values[0] is None and line.ratios == pytest.approx([None, 1.0, line.values[2] / line.values[1]])
