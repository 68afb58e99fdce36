"""The launches of one case on both sides of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.analysis.launch import Launch
from bench.analysis.metrics import Scope


@dataclass
class Pair:
    """One case."""

    case: str
    baseline: Sequence[Launch]
    candidate: Sequence[Launch]
    spoiled: dict[str, frozenset[Scope]] = field(default_factory=dict)
    """Fields in which the sides differ, with the scopes of metrics that they spoil."""
    _last: tuple[str, list[float], list[float]] = ("", [], [])

    def values(self, metric: str) -> tuple[list[float], list[float]]:
        """Measured values of the ok launches of each side."""
        if self._last[0] != metric:  # asked for twice in a row
            before = [launch.values[metric] for launch in self.baseline if metric in launch.values]
            after = [launch.values[metric] for launch in self.candidate if metric in launch.values]
            self._last = (metric, before, after)
        return self._last[1], self._last[2]

    @property
    def ran(self) -> bool:
        """Whether each side has a launch that ended well."""
        return any(x.status == "ok" for x in self.baseline) and any(x.status == "ok" for x in self.candidate)

    def measured(self) -> tuple[set[str], set[str]]:
        """Names of the metrics that each side has."""
        before, after = ({n for launch in side for n in launch.values} for side in (self.baseline, self.candidate))
        return before, after


def matrix(sides: Sequence[Sequence[Launch]], metric: str) -> np.ndarray:
    """Values of one release as cases × launch numbers, NaN where there is none or it is not positive.

    Args:
        sides: for each case its launches.
        metric: name.
    """
    rounds = sorted({launch.repeat for launches in sides for launch in launches})
    column = {number: i for i, number in enumerate(rounds)}
    values = np.full((len(sides), len(rounds)), np.nan)
    for i, launches in enumerate(sides):
        for launch in launches:
            value = launch.values.get(metric)
            if value is not None and value > 0:
                values[i, column[launch.repeat]] = value
    return values
