"""The pipeline bubble: how long stages neither compute forward nor backward."""

from __future__ import annotations

from dataclasses import dataclass

from bench.records.schema import CaseRecord


@dataclass(frozen=True)
class Bubble:
    """Idle shares of a pipeline, 0 to 1."""

    measured: float
    """Mean over the ranks: what is not computing of the longest rank's schedule, transfers included."""
    ideal: float
    """(p − 1) / (m + p − 1) for p stages and m micro-batches of equal length (GPipe, arXiv:1811.06965)."""


def bubble(record: CaseRecord) -> Bubble | None:
    """The bubble of a case over its timed steps; None without pipeline stages or measurements."""
    times = [rank.pipeline for rank in record.ranks if rank.pipeline]
    if not times or len(times) < len(record.ranks) or not record.accumulation_steps:
        return None
    longest = max(one.schedule_s for one in times)
    if longest <= 0:
        return None
    stages = record.case.pp_size
    busy = sum(one.compute_s for one in times) / len(times)
    return Bubble(1 - busy / longest, (stages - 1) / (record.accumulation_steps + stages - 1))
