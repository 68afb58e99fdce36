"""A plan as it is stored in a case's record."""

from __future__ import annotations

from bench.planner.meters import Prediction
from bench.planner.parts import PHASES, Moment
from bench.planner.plan import CasePlan
from bench.records.memory import TallyPhase
from bench.records.planned import MeterRange, PlanRecord


def plan_record(plan: CasePlan) -> tuple[PlanRecord | None, dict[str, str]]:
    """Turn a plan into its stored form.

    Args:
        plan: the plan.

    Returns:
        The record, None where shape or layout are beyond the formulas; and reasons for what is null, by the
        names that `CaseRecord.missing` uses.
    """
    fullest, speed = plan.fullest, plan.speed
    if fullest is None:
        return None, {"plan": plan.reason.partition(";")[0]}  # what would be accepted is of no use afterwards
    missing = {}
    if plan.gpu is None:
        no_gpu = "no GPU that the catalogue knows"
        missing = {"plan.fits": no_gpu, "plan.meters": no_gpu, "plan.samples_per_s": no_gpu}
    elif plan.samples_per_s is None:
        missing["plan.samples_per_s"] = "the plan expects the case not to fit"
    record = PlanRecord(
        gpu=plan.gpu.name if plan.gpu else None, fits=plan.fits, shortfall_bytes=plan.shortfall_bytes,
        stage=fullest.stage.index, phases={phase: _phase(fullest.phase_peak(phase)) for phase in PHASES},
        host_bytes=round(fullest.host_bytes),
        meters={name: _range(prediction) for name, prediction in plan.peak.items()} or None,
        samples_per_s=plan.samples_per_s,
        speed_uncertainty=speed.uncertainty if speed and plan.samples_per_s is not None else None,
        extrapolated=plan.extrapolated,
    )  # fmt: skip
    return record, missing


def _phase(moment: Moment) -> TallyPhase:
    parts = {name: round(n_bytes) for name, n_bytes in moment.components.items() if n_bytes}
    return TallyPhase(peak_bytes=sum(parts.values()), by_category=parts)


def _range(prediction: Prediction) -> MeterRange:
    low, expected, high = (round(n_bytes) for n_bytes in (prediction.low, prediction.expected, prediction.high))
    return MeterRange(low=low, expected=expected, high=high)
