"""Where a change sits: components of a step, categories of the memory peak, phases of a launch.

Nothing here is a verdict. It splits what `compare` found by the parts that the records have.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.launch import Launch
from bench.analysis.verdict import Comparison, Row

MEMORY_CASES = 25
"""Memory changes that are split; each reads two whole records."""
MOST, ALL = 0.6, 0.9
"""Share of a change from which one part has most of it, or all of it."""


@dataclass(frozen=True)
class Split:
    """One change, by parts."""

    case: str
    metric: str
    unit: str
    """`s` or `bytes`, of the parts."""
    parts: list[tuple[str, float, float]]
    """Part, baseline, candidate; the largest change first."""

    @property
    def change(self) -> float:
        """Sum over the parts."""
        return sum(after - before for _, before, after in self.parts)

    @property
    def carrier(self) -> tuple[str, float] | None:
        """The part with most of the change and its share; None where no part has most of it."""
        name, before, after = self.parts[0]
        share = (after - before) / self.change if self.change else 0.0
        return (name, share) if share >= MOST else None


@dataclass(frozen=True)
class PhaseChange:
    """One phase over all comparable cases."""

    phase: str
    cases: int
    baseline_s: float
    """Median over the launches, summed over the cases."""
    candidate_s: float
    ratio: float
    """Geometric mean over the cases."""


def splits(comparison: Comparison) -> list[Split]:
    """Split every changed step time and memory peak whose records have parts, in the order of the rows."""
    found: list[Split | None] = []
    timed: set[str] = set()
    traced: set[str] = set()  # one split a case: its meters rise and fall together
    for row in comparison.rows:
        if row.verdict not in ("regressed", "improved"):
            continue
        before, after = comparison.baseline.launches[row.case], comparison.candidate.launches[row.case]
        if row.metric in ("step_s", "samples_per_s", "tokens_per_s") and row.case not in timed:
            timed.add(row.case)
            found.append(_split(row, "s", _medians(before, _parts), _medians(after, _parts)))
        elif row.metric.endswith("_peak_bytes") and row.case not in traced and len(traced) < MEMORY_CASES:
            traced.add(row.case)
            found.append(_split(row, "bytes", _categories(before), _categories(after)))
    return [split for split in found if split]


def phases(comparison: Comparison, cases: Iterable[str] | None = None) -> list[PhaseChange]:
    """Compare the wall time of each phase over the cases that ran on both sides under equal conditions.

    Args:
        comparison: the rows.
        cases: only these; None takes all.
    """
    barred = {row.case for row in comparison.rows if row.verdict == "not comparable"}
    totals: dict[str, list[tuple[float, float]]] = {}
    for case in comparison.baseline.launches if cases is None else cases:
        sides = [release.launches.get(case, []) for release in (comparison.baseline, comparison.candidate)]
        before, after = (_medians(side, _phases) for side in sides)
        for name in before.keys() & after.keys() if case not in barred else ():
            if before[name] > 0 and after[name] > 0:
                totals.setdefault(name, []).append((before[name], after[name]))
    order = {name: i for i, name in enumerate(_order(comparison))}
    changes = [_phase(name, both) for name, both in totals.items()]
    return sorted(changes, key=lambda change: order.get(change.phase, len(order)))


def _phase(name: str, both: Sequence[tuple[float, float]]) -> PhaseChange:
    logs = [math.log(after / before) for before, after in both]
    sums = (sum(before for before, _ in both), sum(after for _, after in both))
    return PhaseChange(name, len(both), *sums, math.exp(statistics.fmean(logs)))


def _order(comparison: Comparison) -> list[str]:
    """Phases in the order in which a launch runs through them."""
    launches = [x for side in comparison.candidate.launches.values() for x in side if x.phases]
    return list(max(launches, key=lambda x: len(x.phases)).phases) if launches else []


def _split(row: Row, unit: str, before: dict[str, float], after: dict[str, float]) -> Split | None:
    names = before.keys() | after.keys()
    if not before or not after or len(names) < 2:
        return None
    parts = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    parts.sort(key=lambda part: (-abs(part[2] - part[1]), part[0]))
    return Split(row.case, row.metric, unit, parts)


def _parts(launch: Launch) -> dict[str, float]:
    return launch.parts


def _phases(launch: Launch) -> dict[str, float]:
    return launch.phases


def _medians(launches: Sequence[Launch], pick: Callable[[Launch], dict[str, float]]) -> dict[str, float]:
    """Median over the ok launches of every part that all of them have."""
    parts = [part for launch in launches if launch.status == "ok" and (part := pick(launch))]
    if len(parts) < 2:
        return parts[0] if parts else {}
    names = set.intersection(*(set(part) for part in parts))
    return {name: statistics.median([part[name] for part in parts]) for name in names}


def _categories(launches: Sequence[Launch]) -> dict[str, float]:
    """Bytes by category at the highest point of the fullest rank, from the first ok launch's memory pass."""
    first = next((launch for launch in launches if launch.status == "ok"), None)
    raw: dict[str, Any] = json.loads(Path(first.path).read_bytes()) if first else {}
    passes = [rank.get("memory_pass") or {} for rank in raw.get("ranks", [])]
    points = [phase for traced in passes for phase in traced.get("phases", {}).values()]
    top = max(points, key=lambda phase: phase["peak_bytes"], default=None)
    return {name: float(size) for name, size in top["by_category"].items()} if top else {}
