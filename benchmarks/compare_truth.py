"""How often does `bench compare` find what is true? Simulated releases with fixed seeds.

    python -m benchmarks.compare_truth [--sets 200]

Prints one line a scenario: of the slower cases, how many were found, called unchanged, or left open; false alarms per
set of 200 cases; the false discovery rate; how often the whole set was called slower. The last lines hold three tests
side by side on the same data: a rank test a case, Welch's t-test a case, and the test in use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from bench.analysis.metrics import METRICS
from bench.analysis.ratios import SET_LEVEL, adjust, compare, set_wide

CASES, FDR, NOISE = 200, 0.05, 0.03
MIN_EFFECT, DETECT = np.log1p(METRICS["step_s"].min_effect), METRICS["step_s"].detect
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Unit normal."""
    return rng.standard_normal(shape)


def student(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Heavy tails: t with three degrees of freedom, unit variance."""
    return rng.standard_t(3, shape) / np.sqrt(3)


def laplace(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Double exponential, unit variance."""
    return rng.laplace(size=shape) / np.sqrt(2)


def skewed(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Exponential: sometimes much slower, never much faster."""
    return rng.exponential(size=shape) - 1


def shared(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Half of the variance common to all cases of a round."""
    return np.sqrt(0.5) * (rng.standard_normal((1, shape[1])) + rng.standard_normal(shape))


def one_in_five_noisy(rng: np.random.Generator) -> np.ndarray:
    """A fifth of the cases with 10 % noise, the others with 2 %."""
    return np.where(rng.random(CASES) < 0.2, 0.10, 0.02)


def spread_out(rng: np.random.Generator) -> np.ndarray:
    """Noise of 3 % times a log-normal factor of the case."""
    return NOISE * np.exp(rng.normal(0, 0.6, CASES))


SCENARIOS: dict[str, dict] = {
    "nothing changed, 5 launches": {"slow": 0},
    "5 % of cases 10 % slower, 5 launches": {},
    "every case 10 % slower, 5 launches": {"slow": 1},
    "every case 20 % slower, 5 launches": {"slow": 1, "factor": 1.2},
    "nothing changed, 3 launches": {"slow": 0, "launches": (3, 3)},
    "5 % of cases 10 % slower, 3 launches": {"launches": (3, 3)},
    "every case 20 % slower, 1 launch": {"slow": 1, "factor": 1.2, "launches": (1, 1)},
    "nothing changed, 5 against 3": {"slow": 0, "launches": (5, 3)},
    "5 % slower, 8 against 4": {"launches": (8, 4)},
    "heavy tails, nothing changed": {"slow": 0, "draw": student},
    "heavy tails, 5 % slower": {"draw": student},
    "double exponential, 5 % slower": {"draw": laplace},
    "skewed, nothing changed": {"slow": 0, "draw": skewed},
    "skewed, 5 % slower": {"draw": skewed},
    "rounds share noise, nothing changed": {"slow": 0, "draw": shared},
    "rounds share noise, 5 % slower": {"draw": shared},
    "a fifth of cases noisy, nothing changed": {"slow": 0, "sd": one_in_five_noisy},
    "a fifth of cases noisy, 5 % slower": {"sd": one_in_five_noisy},
    "noise spread out, nothing changed": {"slow": 0, "sd": spread_out},
    "noise spread out, 5 % slower": {"sd": spread_out},
    "an outlying launch in a tenth, nothing changed": {"slow": 0, "outliers": 0.1},
    "an outlying launch in a tenth, 5 % slower": {"outliers": 0.1},
}


def draw(
    rng: np.random.Generator, slow: float = 0.05, factor: float = 1.1, launches: tuple[int, int] = (5, 5),
    draw: Draw = normal, sd: Callable[[np.random.Generator], np.ndarray] | None = None, outliers: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Two releases (cases × launches) and which cases are slower."""
    true, is_slow = rng.uniform(0.05, 2, CASES), np.zeros(CASES, bool)
    is_slow[rng.choice(CASES, round(slow * CASES), replace=False)] = True
    spread = (sd(rng) if sd else np.full(CASES, NOISE))[:, None]
    before, after = (true[:, None] * np.exp(spread * draw(rng, (CASES, n))) for n in launches)
    after *= np.where(is_slow, factor, 1.0)[:, None]
    after[rng.random(CASES) < outliers, rng.integers(launches[1])] *= 1.5
    return before, after, is_slow


def measure(sets: int, seed: int, **scenario) -> dict[str, float]:
    """Rates over several sets."""
    rng = np.random.default_rng(seed)
    total = dict.fromkeys(("found", "unchanged", "slow", "false", "fdr", "open", "same", "whole"), 0.0)
    for _ in range(sets):
        before, after, slow = draw(rng, **scenario)
        result = compare(before, after)
        changed = (result.q <= FDR) & (np.abs(result.effect) >= MIN_EFFECT)
        worse, unchanged = changed & (result.effect > 0), result.rules_out(DETECT, FDR) & ~changed
        false = int((changed & ~slow).sum() + (changed & slow & ~worse).sum())
        whole = set_wide(result)
        total["found"] += (worse & slow).sum()
        total["unchanged"] += (unchanged & slow).sum()
        total["slow"] += slow.sum()
        total["same"] += (~slow).sum()
        total["open"] += (~changed & ~unchanged & ~slow).sum()
        total["false"] += false
        total["fdr"] += false / max(int(changed.sum()), 1)
        told = whole is not None and whole.p is not None and whole.p <= SET_LEVEL
        total["whole"] += told and np.log(whole.ratio) >= MIN_EFFECT
    rates = {name: total[name] / max(total["slow"], 1) for name in ("found", "unchanged")}
    rates |= {name: total[name] / sets for name in ("false", "fdr", "whole")}
    return rates | {"open": total["open"] / max(total["same"], 1)}


def side_by_side(sets: int, seed: int) -> dict[str, float]:
    """Slower cases found by three tests, all with Benjamini-Hochberg at 5 %, 5 launches, 5 % of cases 10 % slower."""
    rng, found, slow_cases = np.random.default_rng(seed), dict.fromkeys(("rank", "welch", "pooled"), 0), 0
    for _ in range(sets):
        before, after, slow = draw(rng)
        p_values = {
            "rank": stats.mannwhitneyu(before, after, axis=1, method="exact").pvalue,
            "welch": stats.ttest_ind(np.log(before), np.log(after), axis=1, equal_var=False).pvalue,
            "pooled": compare(before, after).p,
        }
        slow_cases += int(slow.sum())
        for name, p in p_values.items():
            found[name] += int(((adjust(p) <= FDR) & slow).sum())
    return {name: n / slow_cases for name, n in found.items()}


def main() -> None:
    """Run every scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.perf_counter()
    print(f"{options.sets} sets of {CASES} cases, {NOISE:.0%} noise between launches, seed {options.seed}\n")
    print(f"{'scenario':48} {'found':>7} {'missed*':>8} {'false/set':>10} {'FDR':>6} {'open':>6} {'set slower':>11}")
    for name, scenario in SCENARIOS.items():
        r = measure(options.sets, options.seed, **scenario)
        slow = scenario.get("slow", 0.05) > 0
        shown = (f"{r['found']:7.1%} {r['unchanged']:8.1%}") if slow else f"{'–':>7} {'–':>8}"
        print(f"{name:48} {shown} {r['false']:10.3f} {r['fdr']:6.1%} {r['open']:6.1%} {r['whole']:11.1%}")
    print("\n* called unchanged although slower; open: inconclusive although nothing changed\n")
    for name, share in side_by_side(min(options.sets, 100), options.seed).items():
        print(f"{name:8} finds {share:6.1%} of the slower cases")
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
