"""Accuracy: shares of held-out examples, tested over examples.

Both sides answer the same held-out rows, so examples are paired where `eval.parquet` lists them (McNemar's exact test,
or a t-test over examples where several launches are averaged); otherwise two independent binomial samples are
assumed (Fisher's exact test), which finds less. Launches share their examples and never multiply them; what launches
differ among themselves is added to the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from bench.analysis.launch import Launch
from bench.analysis.metrics import Metric
from bench.analysis.pair import Pair
from bench.analysis.ratios import CONFIDENCE, adjust
from bench.analysis.verdict import Row

_Z_SHOWN = float(stats.norm.isf((1 - CONFIDENCE) / 2))
_Z_ONE_SIDED = float(stats.norm.isf(0.05))
"""`unchanged` takes two one-sided tests at 5 %."""
_COLUMN = {"exact_match": "exact", "token_accuracy": "correct_tokens"}


@dataclass(frozen=True)
class _Test:
    """Difference of two shares."""

    difference: float
    error: float
    p: float
    examples: int
    paired: bool


def judge(metric: Metric, pairs: Sequence[Pair], fdr: float) -> list[Row]:
    """Judge every case of an accuracy.

    Args:
        metric: `exact_match` or `token_accuracy`.
        pairs: with values on both sides.
        fdr: false discovery rate over the cases.
    """
    tests = [_test(metric, pair) for pair in pairs]
    q_values = adjust(np.array([test.p for test in tests], float))
    return [_row(metric, pair, test, q, fdr) for pair, test, q in zip(pairs, tests, q_values.tolist(), strict=True)]


def _row(metric: Metric, pair: Pair, test: _Test, q: float, fdr: float) -> Row:
    values = pair.values(metric.name)
    before, after = (sum(side) / len(side) for side in values)
    half = _Z_SHOWN * test.error
    row = Row(
        pair.case, metric.name, "inconclusive", before, after, after / before if before else None,
        test.difference - half, test.difference + half, test.p, q, (len(values[0]), len(values[1])),
        note="paired" if test.paired else "unpaired", details={"examples": test.examples},
    )  # fmt: skip
    if q <= fdr and abs(test.difference) >= metric.min_effect:
        row.verdict = "regressed" if test.difference * metric.sign > 0 else "improved"
        return row
    if not test.error:
        row.verdict, row.note, row.low, row.high = "unchanged", "same_answers", None, None
        return row
    half = _Z_ONE_SIDED * test.error
    if abs(test.difference) + half < metric.detect:
        row.verdict = "unchanged"
        return row
    room = max(metric.detect - abs(test.difference), metric.detect / 3)
    row.note = "few_examples"
    row.details["needed"] = math.ceil(test.examples * max((half / room) ** 2, 1.1))
    return row


def _test(metric: Metric, pair: Pair) -> _Test:
    sides = [[x for x in side if x.counts and metric.name in x.values] for side in (pair.baseline, pair.candidate)]
    if not all(sides):
        return _Test(0.0, float("inf"), 1.0, 0, False)
    examples = min(launch.counts[0] for side in sides for launch in side if launch.counts)
    prints = {(launch.counts, launch.values.get("eval_loss")) for side in sides for launch in side}
    if len(prints) == 1 and None not in next(iter(prints)):
        # Equal loss sums to the last digit: the same answers, example by example.
        return _Test(0.0, 0.0, 1.0, examples, True)
    shares = [np.array([launch.values[metric.name] for launch in side]) for side in sides]
    difference = float(shares[1].mean() - shares[0].mean())
    between = sum(float(s.var(ddof=1)) / len(s) for s in shares if len(s) > 1)
    paired = _paired(metric, sides, between, difference)
    return paired or _unpaired(sides, shares, between, examples, metric)


def _paired(metric: Metric, sides: list[list[Launch]], between: float, difference: float) -> _Test | None:
    """Test over the examples of both sides; None where they are not listed or not the same."""
    tables = [[_examples(launch, _COLUMN[metric.name]) for launch in side] for side in sides]
    if any(table is None for side in tables for table in side):
        return None
    order, tokens, _ = tables[0][0]
    if any(not np.array_equal(table[0], order) or table[1].sum() != tokens.sum() for side in tables for table in side):
        return None
    means = [np.mean([table[2] for table in side], axis=0) for side in tables]
    change = means[1] - means[0]
    total = len(order) if metric.name == "exact_match" else tokens.sum()
    # One pseudo-observation (Agresti and Min 2005) keeps the error above zero where no example changed.
    error = math.sqrt((np.square(change - change.mean()).sum() + 1) / total**2 + between)
    if metric.name == "exact_match" and all(len(side) == 1 for side in sides):
        gained, lost = int((change > 0).sum()), int((change < 0).sum())
        p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    else:
        p = 2 * float(stats.norm.sf(abs(difference) / error))
    return _Test(difference, error, p, len(order), True)


def _unpaired(
    sides: list[list[Launch]], shares: list[np.ndarray], between: float, examples: int, metric: Metric
) -> _Test:
    """Two binomial samples of examples; tokens of one example count as one, as if they all agreed."""
    difference, variance = float(shares[1].mean() - shares[0].mean()), between
    for share in shares:
        smoothed = (share.mean() * examples + 1) / (examples + 2)  # Agresti and Caffo 2000
        variance += smoothed * (1 - smoothed) / (examples + 2)
    error = math.sqrt(variance)
    if metric.name == "exact_match" and all(len(side) == 1 for side in sides):
        counts = [side[0].counts for side in sides]
        p = float(stats.fisher_exact([[n[1], n[0] - n[1]] for n in counts if n]).pvalue)
    else:
        p = 2 * float(stats.norm.sf(abs(difference) / error))
    return _Test(difference, error, p, examples, False)


def _examples(launch: Launch, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Sample numbers, answer tokens and scores after training, sorted by sample; None without a readable table."""
    path = Path(launch.path).with_name("eval.parquet")
    if not path.is_file():
        return None
    import pyarrow.parquet as parquet  # only comparisons with per-example tables pay for it

    try:
        table = parquet.read_table(path, columns=["moment", "sample", "loss_tokens", column])
    except (OSError, ValueError, KeyError):
        return None
    after = np.array([moment == "after" for moment in table["moment"].to_pylist()])
    sample, tokens, score = (
        table[name].to_numpy(zero_copy_only=False)[after].astype(float) for name in ("sample", "loss_tokens", column)
    )
    order = np.argsort(sample, kind="stable")
    return sample[order], tokens[order], score[order]
