"""The plan of one case: memory of every rank by component and phase, fit, speed, price, checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from bench.errors import SpecError
from bench.planner.job import Job, job_of
from bench.planner.layouts import is_extrapolated, why_infeasible
from bench.planner.memory import RankMemory, rank_memories
from bench.planner.meters import (
    ALLOCATED_MARGIN,
    ALLOCATOR_FILL,
    Prediction,
    available_bytes,
    communicators,
    fixed_bytes,
    predict_meters,
)
from bench.planner.speed import Speed, checkpoint_bytes, speed_of
from bench.spec.case import Case
from bench.spec.hardware import Gpu
from bench.spec.layout import remarks
from bench.spec.models import ModelShape, shape_of
from bench.units import gib

MOST_MICRO_BATCH = 4096
"""Where the search for the largest micro-batch ends."""


@dataclass(frozen=True)
class CasePlan:
    """What is expected of a case before anything runs."""

    case: Case
    world_size: int
    gpu: Gpu | None
    """None on a CPU machine, or where the device is in no catalogue: nothing is said about fit or speed."""
    shape: ModelShape | None
    job: Job | None
    memories: tuple[RankMemory, ...]
    """One entry a pipeline stage: its fullest rank."""
    fits: bool | None
    """None where it cannot be told."""
    shortfall_bytes: int | None
    """How much the fullest rank lacks; 0 where it fits."""
    peak: dict[str, Prediction]
    """Expected peak of the fullest rank by meter."""
    speed: Speed | None
    largest_micro_batch: int | None
    """Most samples of one forward pass that fit; 0 where not even one does."""
    checkpoint_bytes: int | None
    reason: str
    """One sentence: whether it fits, by how much, and what decides."""
    possible: bool = True
    """False where the layout does not exist for this model."""
    extrapolated: str | None = None
    remarks: tuple[str, ...] = field(default=())

    @property
    def samples_per_s(self) -> float | None:
        """Expected rate; None where it does not fit or cannot be told."""
        return self.speed.samples_per_s if self.speed and self.fits is not False else None

    @cached_property
    def fullest(self) -> RankMemory | None:
        """The stage whose ranks need most."""
        return max(self.memories, key=lambda m: m.peak.total) if self.memories else None


def plan_case(case: Case, world_size: int, gpu: Gpu | None, gpus_per_node: int = 8) -> CasePlan:
    """Predict one case; never raises for a model or layout it does not know.

    Args:
        case: the case.
        world_size: ranks over all nodes.
        gpu: the device, or None on CPU.
        gpus_per_node: devices that share the fast link.

    Returns:
        The plan; `fits` is None where shape or device is unknown, with the reason.
    """
    try:
        shape = shape_of(case.model, case.model_overrides)
    except SpecError as error:
        return _untold(case, world_size, gpu, f"unknown shape: {error}")
    try:
        return plan_shape(case, shape, world_size, gpu, gpus_per_node)
    except SpecError as error:
        # A target module or DeepSpeed template that does not exist is for the run to refuse, in its own words.
        return _untold(case, world_size, gpu, f"cannot be planned: {error}")


def plan_shape(case: Case, shape: ModelShape, world_size: int, gpu: Gpu | None, gpus_per_node: int = 8) -> CasePlan:
    """The same for a shape that is already known."""
    refused = why_infeasible(case, world_size, shape)
    if refused is None and gpu is not None and case.precision == "bf16" and not gpu.bf16:
        refused = f"precision bf16: {gpu.name} has no bf16 matrix units; accepted: fp16, fp32"
    if refused:
        plan = _untold(case, world_size, gpu, refused)
        return replace(plan, possible=False, shape=shape)
    job = job_of(case, world_size, shape)
    memories = tuple(rank_memories(job))
    fullest = max(memories, key=lambda m: m.peak.total)
    extrapolated = is_extrapolated(case)
    notes = tuple(remarks(case, world_size))
    common = {
        "case": case, "world_size": world_size, "gpu": gpu, "shape": shape, "job": job, "memories": memories,
        "checkpoint_bytes": checkpoint_bytes(shape, job), "extrapolated": extrapolated, "remarks": notes,
    }  # fmt: skip
    if gpu is None:
        where = f"{fullest.peak.phase}, {fullest.peak.at}"
        reason = f"no GPU to compare with; tensors peak at {gib(fullest.peak.total)} ({where})"
        return CasePlan(
            **common, fits=None, shortfall_bytes=None, peak={}, speed=None, largest_micro_batch=None, reason=reason
        )
    groups = communicators(job.dp, job.tp, job.pp, job.sp)
    room = available_bytes(gpu, groups)
    peak = predict_meters(fullest.peak.total, gpu, groups, extrapolated is not None)
    need = peak["allocated"].expected
    fits = need <= room
    return CasePlan(
        **common, fits=fits, shortfall_bytes=max(0, round(need - room)), peak=peak,
        speed=speed_of(job, gpu, gpus_per_node, extrapolated is not None),
        largest_micro_batch=largest_micro_batch(job, gpu),
        reason=_sentence(fullest, need, room, gpu, groups, peak["reserved"]),
    )  # fmt: skip


def job_fits(job: Job, gpu: Gpu) -> bool:
    """Whether every rank's allocated peak is within what the device leaves."""
    groups = communicators(job.dp, job.tp, job.pp, job.sp)
    need = max(m.peak.total for m in rank_memories(job))
    return predict_meters(need, gpu, groups, False)["allocated"].expected <= available_bytes(gpu, groups)


def largest_micro_batch(job: Job, gpu: Gpu) -> int:
    """Most samples of one forward pass that fit, other fields equal (accumulation aside)."""
    return _largest(lambda n: job_fits(replace(job, micro_batch=n), gpu), MOST_MICRO_BATCH)


def largest_seq_len(job: Job, gpu: Gpu, step: int = 128) -> int:
    """Longest sequence that fits at this micro-batch, in multiples of `step` tokens."""
    return step * _largest(lambda n: job_fits(replace(job, seq_len=n * step), gpu), 2**20 // step)


def _largest(fits: object, most: int) -> int:
    """Largest n with fits(n), by doubling and bisection; memory is monotone in n."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def decisive(memory: RankMemory) -> str:
    """The largest component of the peak, in words."""
    name, size = max(memory.peak.components.items(), key=lambda item: item[1])
    return f"{name.replace('_', ' ')} {gib(size)}"


def _sentence(memory: RankMemory, need: float, room: int, gpu: Gpu, groups: int, reserved: Prediction) -> str:
    where = f"{memory.peak.phase}, {memory.peak.at}; most of it {decisive(memory)}"
    left = gpu.usable_bytes - fixed_bytes(groups)
    if need > room:
        close = ""
        if need - room <= ALLOCATED_MARGIN * gpu.usable_bytes:
            close = f"; a close call, within {100 * ALLOCATED_MARGIN:.0f} % of the device"
        return (
            f"cannot fit by {gib(need - room)}: needs {gib(need)} ({where}); of {gpu.name}'s {gib(gpu.usable_bytes)} "
            f"context and NCCL leave {gib(left)}, of which {100 * ALLOCATOR_FILL:.0f} % can be filled{close}"
        )
    spare = f"fits with {gib(room - need)} to spare: needs {gib(need)} ({where})"
    if reserved.expected >= left * 0.995:
        return f"{spare}; tight, the allocator will have to give cached blocks back"
    return spare


def _untold(case: Case, world_size: int, gpu: Gpu | None, reason: str) -> CasePlan:
    return CasePlan(
        case=case, world_size=world_size, gpu=gpu, shape=None, job=None, memories=(), fits=None,
        shortfall_bytes=None, peak={}, speed=None, largest_micro_batch=None, checkpoint_bytes=None, reason=reason,
    )  # fmt: skip
