"""A rehearsal beside the formulas: DeepSpeed's own storages on one rank, and which component differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from bench.planner.gradients import rooms
from bench.planner.job import FULL, Job
from bench.planner.memory import RankMemory
from bench.planner.meters import available_bytes, communicators, predict_meters
from bench.planner.plan import CasePlan
from bench.records.memory import HOST, MemoryPass, widest_phase
from bench.units import gib, gib_cell

NOTICED = 0.03
"""Relative difference of the peaks from which on a component is named."""
DASH = "—"
UNSEEN = (
    "A rehearsal counts tensors. CUDA context, NCCL, cuBLAS workspace and the share of the device that can be filled "
    "are added as in the plan. Flash attention's fp32 accumulator of the query's gradient lives inside a kernel: it is "
    "in the upper bound alone. Every sample has seq_len tokens."
)


@dataclass(frozen=True)
class Rehearsed:
    """One rank of one case."""

    plan: CasePlan
    memory: RankMemory
    """What the formulas say of its stage."""
    rank: int
    traced: MemoryPass
    """What was seen; its `reason` says why not where its status is not ok."""

    @property
    def phase(self) -> str | None:
        """In which the peak falls."""
        return widest_phase(self.traced.phases)

    @property
    def error(self) -> float | None:
        """How far the formulas' peak is from the rehearsed one, relative to it."""
        return self.memory.peak.total / self.traced.peak_bytes - 1 if self.traced.peak_bytes else None

    @property
    def steady_error(self) -> float | None:
        """The same of what lives between two steps."""
        steady = self.traced.phases.get("steady")
        return self.memory.steady.total / steady.peak_bytes - 1 if steady else None

    def differences(self) -> dict[str, int]:
        """Formula less rehearsal by component, bytes, at the peak of the phase that holds the rehearsed peak."""
        seen = self.traced.phases[self.phase].by_category
        said = (
            self.memory.phase_peak(self.phase).components if self.phase != "steady" else self.memory.steady.components
        )
        names = [*said, *(name for name in seen if name not in said and name != HOST)]
        return {name: round(said.get(name, 0.0) - seen.get(name, 0)) for name in names}

    @property
    def differs_in(self) -> str | None:
        """The component that differs most, where the peaks are apart by more than `NOTICED`."""
        if self.error is None or abs(self.error) <= NOTICED:
            return None
        name, size = max(self.differences().items(), key=lambda item: item[1] * (1 if self.error > 0 else -1))
        return f"{name.replace('_', ' ')} {'+' if size > 0 else '−'}{gib(abs(size))}"

    @property
    def fits(self) -> bool | None:
        """Whether this rank's allocated peak is within what the device leaves."""
        meters = self.meters
        if not meters:
            return None
        return meters["allocated"].expected <= available_bytes(self.plan.gpu, _groups(self.plan.job))

    @property
    def meters(self) -> dict[str, Any]:
        """Predictions of the three meters from the rehearsed peak; empty without a GPU or a peak."""
        plan = self.plan
        if plan.gpu is None or self.traced.peak_bytes is None:
            return {}
        unseen = flash_accumulator_bytes(plan.job) if self.phase == "backward" else 0.0
        return predict_meters(
            self.traced.peak_bytes, plan.gpu, _groups(plan.job), plan.extrapolated is not None, unseen
        )


def _groups(job: Job) -> int:
    return communicators(job.dp, job.tp, job.pp, job.sp)


def flash_accumulator_bytes(job: Job) -> float:
    """fp32 gradient of the query that flash attention's backward kernel accumulates (FlashAttention-2, algorithm 2)."""
    return FULL * job.shape.q_dim / job.tp * job.tokens if job.attention == "flash" else 0.0


def ranks_to_rehearse(plan: CasePlan) -> list[int]:
    """The fullest rank of every pipeline stage: under ZeRO-1 and 2 ranks differ in the gradients they keep."""
    job, ranks = plan.job, []
    for memory in plan.memories:
        shard = 0
        if job.engine == "zero" and job.zero_stage in (1, 2):
            elements = [room.elements for room in rooms(job, memory.stage)]
            shard = elements.index(max(elements))
        ranks.append(memory.stage.index * job.shards * job.tp + shard * job.tp)
    return ranks


def rehearsal_rows(rehearsals: Sequence[Rehearsed]) -> list[dict[str, Any]]:
    """Flat values of each; None where nothing was seen."""
    return [
        {
            "case": one.plan.case.id, "stage": one.memory.stage.index, "rank": one.rank, "status": one.traced.status,
            "reason": one.traced.reason, "peak_bytes": one.traced.peak_bytes, "peak_phase": one.phase,
            "formula_bytes": round(one.memory.peak.total), "formula_phase": one.memory.peak.phase,
            "formula_error": one.error, "steady_formula_error": one.steady_error, "differs_in": one.differs_in,
            "fits": one.fits,
            "host_bytes": one.traced.phases[one.phase].by_category.get(HOST, 0) if one.phase else None,
            "phases": {name: phase.model_dump() for name, phase in one.traced.phases.items()},
        }
        for one in rehearsals
    ]  # fmt: skip


def fullest_columns(rehearsals: Sequence[Rehearsed], case_id: str) -> dict[str, Any]:
    """Columns of a case's fullest rehearsed rank, all None where none was seen.

    Args:
        rehearsals: of all cases.
        case_id: the case.
    """
    names = ("peak_bytes", "peak_phase", "formula_error", "differs_in", "fits", "rank")
    seen = [one for one in rehearsals if one.plan.case.id == case_id and one.traced.peak_bytes]
    row = rehearsal_rows([max(seen, key=lambda one: one.traced.peak_bytes)])[0] if seen else {}
    return {f"rehearsed_{name}": row.get(name) for name in names}


def render_rehearsals(rehearsals: Sequence[Rehearsed], style: str) -> str:
    """Tables of the rehearsed ranks, in text or markdown.

    Args:
        rehearsals: in the order of the plans.
        style: `text` or `markdown`.
    """
    table = {"headers": "keys", "tablefmt": "github" if style == "markdown" else "simple", "disable_numparse": True}
    failed = [f"{one.plan.case.id}, rank {one.rank}: {one.traced.reason}" for one in rehearsals if one.traced.reason]
    parts = [
        "Rehearsed: this suite's worker and DeepSpeed on fake tensors, the fullest rank of every stage, peak in GiB:",
        tabulate([_verdict(one) for one in rehearsals], **table),
        "Bytes at the rehearsed peak by component, in GiB:",
        tabulate([_components(one) for one in rehearsals if one.phase], **table),
        "\n".join([UNSEEN, *failed]),
    ]
    return "\n\n".join(parts)


def _verdict(one: Rehearsed) -> dict[str, str]:
    fits = {None: DASH, True: "yes", False: "no"}[one.fits]
    return {
        "case": one.plan.case.id, "stage": str(one.memory.stage.index), "rank": str(one.rank),
        "rehearsed": gib_cell(one.traced.peak_bytes), "in": one.phase or one.traced.status,
        "steady": gib_cell(one.traced.phases["steady"].peak_bytes) if one.phase else DASH,
        "formula": gib_cell(one.memory.peak.total), "its error": _percent(one.error),
        "its steady error": _percent(one.steady_error), "fits": fits, "differs in": one.differs_in or DASH,
    }  # fmt: skip


def _components(one: Rehearsed) -> dict[str, str]:
    seen = one.traced.phases[one.phase].by_category
    shown = {"case": one.plan.case.id, "stage": str(one.memory.stage.index)}
    names = [*one.memory.peak.components, "other", HOST]
    return shown | {name.replace("_", " "): gib_cell(seen.get(name, 0)) for name in names if name != "batch"}


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{round(100 * share, 1) + 0.0:+.1f} %"  # no negative zero
