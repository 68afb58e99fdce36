"""The vocabulary of a comparison: verdicts, one row per case and metric, and the exit code they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.analysis.conditions import Conditions
from bench.analysis.metrics import Metric
from bench.analysis.release import Release

Verdict = Literal[
    "regressed", "improved", "unchanged", "inconclusive", "not comparable", "newly failing", "newly passing",
    "both failing", "missing",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = (
    "regressed", "newly failing", "missing", "not comparable", "inconclusive", "improved", "newly passing",
    "both failing", "unchanged",
)  # fmt: skip
"""In the order in which people want to read them."""
STATUS = "status"
"""Metric name of rows about the case as a whole."""


@dataclass(slots=True)
class Row:
    """One case and metric."""

    case: str
    metric: str
    """Name of a metric, or `status`."""
    verdict: Verdict
    baseline: float | None = None
    """Geometric mean of the launches (median for `exact`, pooled share for `share`); null where there is none."""
    candidate: float | None = None
    ratio: float | None = None
    """Candidate ÷ baseline; null where a side is missing or zero."""
    low: float | None = None
    """Bounds of the 95 % interval of `ratio` (of the difference for shares); null where none can be given."""
    high: float | None = None
    p: float | None = None
    q: float | None = None
    """`p` after Benjamini-Hochberg over the metric's cases."""
    launches: tuple[int, int] = (0, 0)
    """Launches that count, baseline and candidate."""
    more: int | None = None
    """Further launches a side that would settle an inconclusive row."""
    note: str | None = None
    """Key of a sentence in `bench.report.compare_words`."""
    details: dict[str, Any] = field(default_factory=dict)
    """Values for the sentence."""

    @property
    def fails(self) -> bool:
        """Whether this row alone makes the candidate worse."""
        lost = self.verdict == "missing" and self.details.get("side") == "candidate"
        return lost or self.verdict in ("regressed", "newly failing")


@dataclass(frozen=True)
class SetRow:
    """One metric over the whole set: the geometric mean of the cases' ratios."""

    metric: str
    verdict: Verdict
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    cases: int


@dataclass(frozen=True)
class Assumption:
    """What a metric's test found out about its noise."""

    metric: str
    cases: int
    noise: tuple[float, float]
    """Typical standard deviation between launches, relative, baseline and candidate."""
    prior_df: float | None
    """Degrees of freedom that a case borrows from the others; null for no bound."""
    shared: float
    """Part of the variance that all cases of a round share."""
    aside: list[tuple[str, str, int]]
    """Launches set aside: case, release, launch number."""


@dataclass
class Comparison:
    """Two releases, held side by side."""

    baseline: Release
    candidate: Release
    metrics: list[Metric]
    fdr: float
    conditions: Conditions
    rows: list[Row]
    set_rows: list[SetRow]
    assumptions: list[Assumption]

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of rows by metric and verdict."""
        table: dict[str, dict[str, int]] = {}
        for row in self.rows:
            of_metric = table.setdefault(row.metric, {})
            of_metric[row.verdict] = of_metric.get(row.verdict, 0) + 1
        return table


def exit_code(comparison: Comparison, inconclusive: Literal["ok", "fail"] | None) -> int:
    """0 nothing worse, 1 worse, 2 not comparable, 3 inconclusive; the first that holds of 1, 2, 3, 0.

    Args:
        comparison: the rows.
        inconclusive: `ok` counts inconclusive as 0, `fail` as 1.
    """
    rows: Iterable[Row | SetRow] = [*comparison.rows, *comparison.set_rows]
    if any(row.verdict == "regressed" or (isinstance(row, Row) and row.fails) for row in rows):
        return 1
    if any(row.verdict == "not comparable" for row in rows):
        return 2
    if any(row.verdict == "inconclusive" for row in rows):
        return {"ok": 0, "fail": 1, None: 3}[inconclusive]
    return 0
