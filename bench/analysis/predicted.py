"""What was predicted held against what was measured, like against like: the fullest rank on both sides."""

from __future__ import annotations

from dataclasses import dataclass

from bench.analysis import derive
from bench.records.memory import TallyPhase, widest_phase
from bench.records.schema import CaseRecord

METERS = ("allocated", "reserved", "device", "tally")
"""Meters by which a peak can be predicted; the first three on a known GPU alone."""
_TRACED = ("forward", "backward", "step")
"""Phases that are traced, too; saving is only planned, so its moment is left out of comparisons."""


def compared_meters(case: CaseRecord) -> tuple[str, ...]:
    """Meters that a table shows for a case: the GPU's where they were predicted, else the tally."""
    if case.plan is None:
        return (derive.main_meter(case),)
    return ("allocated", "device") if case.plan.meters else ("tally",)


def planned_peak_bytes(case: CaseRecord, meter: str) -> int | None:
    """Predicted peak of the fullest rank over a training step; None where it was not predicted.

    Args:
        case: the record.
        meter: one of METERS; `tally` is live tensors alone. Without a GPU host and device are one memory, and the
            tally holds what offload keeps on the host, too.
    """
    if meter == "tally":
        widest = _planned_moment(case)
        return widest[1].peak_bytes + _host_bytes_in_tally(case) if widest else None
    meters = case.plan.meters if case.plan else None
    return meters[meter].expected if meters and meter in meters else None


def peak_error(case: CaseRecord, meter: str) -> float | None:
    """Predicted peak relative to the measured one, signed: 0.1 is 10 % too much; None where either is missing."""
    return _error(planned_peak_bytes(case, meter), derive.peak_bytes(case, meter))


def speed_error(case: CaseRecord) -> float | None:
    """Predicted samples/s relative to the measured ones, signed; None where either is missing."""
    return _error(case.plan.samples_per_s if case.plan else None, derive.samples_per_s(case))


def is_bound(case: CaseRecord) -> bool:
    """Whether samples may be shorter than planned: memory is then an upper bound, samples/s a lower one."""
    return not case.case.fill


@dataclass(frozen=True)
class Difference:
    """The component in which plan and tally differ most, at the highest point of each."""

    category: str
    planned_bytes: int
    measured_bytes: int
    planned_phase: str
    measured_phase: str
    planned_stage: int
    measured_stage: int
    """Pipeline stage of the fullest rank; 0 without a pipeline."""


def largest_difference(case: CaseRecord) -> Difference | None:
    """Find that component; None without a plan or a memory pass, or where host and device are one to the tally."""
    if _host_bytes_in_tally(case):
        return None
    planned, fullest = _planned_moment(case), derive.fullest_rank(case, "tally")
    rank = next((rank for rank in case.ranks if rank.rank == fullest), None)
    split = derive.peak_split(rank) if rank else None
    if planned is None or split is None:
        return None
    wanted, found = planned[1].by_category, split[1]
    category = max([*wanted, *found], key=lambda name: abs(wanted.get(name, 0) - found.get(name, 0)))
    return Difference(
        category, wanted.get(category, 0), found.get(category, 0), planned[0], split[0],
        case.plan.stage, rank.mesh.get("pp", 0),
    )  # fmt: skip


def _host_bytes_in_tally(case: CaseRecord) -> int:
    return case.plan.host_bytes if case.plan and derive.main_meter(case) == "tally" else 0


def _planned_moment(case: CaseRecord) -> tuple[str, TallyPhase] | None:
    """Phase and split of the widest planned moment of a training step."""
    phases = case.plan.phases if case.plan else {}
    widest = widest_phase({name: phases[name] for name in _TRACED if name in phases})
    return (widest, phases[widest]) if widest else None


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None
