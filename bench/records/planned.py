"""The prediction as it is stored beside what was measured, so that a report needs no planner."""

from __future__ import annotations

from typing import Literal

from bench.records.base import Record
from bench.records.memory import TallyPhase


class MeterRange(Record):
    """Predicted peak of the fullest rank by one meter of a GPU, in bytes."""

    low: int
    expected: int
    high: int


class PlanRecord(Record):
    """One case's prediction at full `seq_len`. What the plan cannot tell is null, with the reason in the case's
    `missing` under `plan.<field>`."""

    gpu: str | None
    """Catalogue name of the device it was made for; null on CPU and for unknown devices."""
    fits: bool | None
    shortfall_bytes: int | None
    """What the fullest rank lacks; 0 where it fits."""
    stage: int
    """Pipeline stage of the fullest rank; 0 without a pipeline."""
    phases: dict[Literal["forward", "backward", "step", "save"], TallyPhase]
    """Live tensors of the fullest rank at each phase's widest moment, by the categories of the memory pass."""
    host_bytes: int
    """Host memory of this rank under offload."""
    meters: dict[Literal["allocated", "reserved", "device"], MeterRange] | None
    samples_per_s: float | None
    """All ranks together; null where the case is not expected to fit."""
    speed_uncertainty: float | None
    """Relative: the rate lies within ± this."""
    extrapolated: str | None
    """Which part of the layout no measurement backs; null where all is backed."""
