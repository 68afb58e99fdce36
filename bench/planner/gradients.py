"""Gradients between the layer that makes them and the optimizer: what each engine keeps, and what it copies.

Follows DeepSpeed 0.19 (`runtime/zero/stage_1_and_2.py`, `stage3.py`). A gradient is copied into a bucket as it
arrives, and its own tensor is freed; when the next one has no room, the bucket is flattened into one more
tensor and reduced. A gradient larger than a bucket is not copied: its own tensor waits until the next arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.planner.job import FULL, Job
from bench.planner.parameters import (
    Stage,
    block_parameters,
    count,
    embedding,
    head,
    optimizer_groups,
    stage_parameters,
    trained_elements,
)

_BACKWARD = ("down_proj", "up_proj", "gate_proj", "post_norm", "o_proj", "v_proj", "k_norm", "k_proj", "q_norm",
             "q_proj", "input_norm")  # fmt: skip
_PLACE = {"down_proj": "down", "up_proj": "mlp", "gate_proj": "mlp"}
"""Where in a block's backward pass a module's gradient is made; the others with attention."""


@dataclass
class BlockArrivals:
    """Most bytes in one block's backward pass when a gradient arrives: itself, and reducing those before it."""

    made: float = 0.0
    """The down projection's gradient alone."""
    down: float = 0.0
    """When it arrives."""
    waiting: float = 0.0
    """Behind the down projection, where the MLP's activations are widest: a gradient that no bucket takes."""
    mlp: float = 0.0
    attention: float = 0.0
    """At the widest of attention's and the norms'."""


@dataclass(frozen=True)
class Arrivals:
    """Most bytes as the gradients of a stage arrive, by place."""

    head: float
    """At the output head's."""
    blocks: tuple[BlockArrivals, ...]
    """In the order of the backward pass."""
    telling: tuple[int, ...]
    """Which of them can hold a peak: the first of equal ones, those before which a rank makes more room for its own
    gradients than any did, and the last."""
    end: float
    """At the embedding's, and when the last bucket is reduced."""


def arrivals(job: Job, stage: Stage) -> Arrivals:
    """Follow the gradients of a stage through one backward pass."""
    return _arrivals(job.layout, stage)


@cache
def _arrivals(job: Job, stage: Stage) -> Arrivals:
    bucket = _Bucket(job.precision.gradients, _copied_bytes(job), _room(job))
    head_bytes = early = end = 0.0
    if stage.last and not job.lora:
        if not (job.shape.tied and stage.first):
            head_bytes = bucket.add(head(job).numel)
        early = bucket.add(job.shape.hidden)
    order, blocks = _block_order(job), []
    for _ in range(stage.layers):
        here = BlockArrivals()
        for place, numel in order:
            setattr(here, place, max(getattr(here, place), bucket.add(numel)))
            if place == "down":
                here.made = max(here.made, bucket.element * numel)
                here.waiting = max(here.waiting, bucket.waiting)
        blocks.append(here)
    if stage.first and not job.lora:
        end = bucket.add(embedding(job).numel)
    last = stage.layers - 1
    telling = {n for n, here in enumerate(blocks) if here not in blocks[:n]} | {last}
    if job.engine == "zero" and job.zero_stage in (1, 2) and blocks:
        most = 0
        for room in sorted(rooms(job, stage), key=lambda room: room.start):
            if room.elements > most:
                most = room.elements
                telling.add(min(last, first_block_behind(job, stage, room.start)))
    return Arrivals(max(head_bytes, early), tuple(blocks), tuple(sorted(telling)), max(end, bucket.last()))


def done_before(job: Job, stage: Stage, run: int) -> float:
    """Share of the trained elements whose gradient exists when so many blocks have run backward."""
    one = count(block_parameters(job), trainable=True)
    outside = count(stage_parameters(job, stage), trainable=True) - one * stage.layers
    # Head and embedding are as large; a single one of them counts whole.
    behind = outside * stage.last / (1 + (stage.first and not job.shape.tied))
    if job.shape.tied and stage.first:
        behind = 0.0
    return (behind + run * one) / max(outside + one * stage.layers, 1)


def first_block_behind(job: Job, stage: Stage, start: float) -> int:
    """Blocks that have run when a share of the gradients has been passed."""
    return next((run for run in range(stage.layers) if done_before(job, stage, run) > start), stage.layers)


def _room(job: Job) -> int | None:
    return job.zero.reduce_bucket if job.engine == "zero" and job.zero_stage else None


@dataclass
class _Bucket:
    """What is in the bucket; without room for any, gradients are only made."""

    element: int
    copied: int
    room: int | None
    filled: int = 0
    members: int = 0
    waiting: float = 0.0
    """Bytes of a gradient that it had no room for, until the next one arrives."""

    def add(self, numel: int) -> float:
        """Bytes at the moment a gradient arrives."""
        reducing = self.waiting
        if self.room is not None and self.filled and self.filled + numel > self.room:
            reducing = self.last()
            self.filled = self.members = 0
        self.filled, self.members = self.filled + numel, self.members + 1
        self.waiting = self.element * numel if self.room is not None and numel > self.room else 0.0
        return self.element * numel + reducing

    def last(self) -> float:
        """Bytes that reducing the present content takes."""
        several = self.room is not None and self.members > 1
        return self.waiting or (self.copied * self.filled if several else 0.0)


def _copied_bytes(job: Job) -> int:
    """Per element of a bucket that is reduced.

    ZeRO-1 and 2 flatten what goes to several ranks, and with sequence ranks cast it to fp32; ZeRO-3 interleaves the
    partitions in the type of its bucket. (On CPU gloo's reduce-scatter clones its input once more.)
    """
    element, wide = job.precision.gradients, job.sp > 1
    if job.zero_stage == 3:
        return FULL if wide else element
    return 0 if job.shards == 1 else element + FULL * wide


def _block_order(job: Job) -> list[tuple[str, int]]:
    """(place, elements) of a block's trained tensors, in the order of the backward pass."""
    by_module: dict[str, list[int]] = {name: [] for name in _BACKWARD}
    for parameter in block_parameters(job):
        if parameter.trainable:
            by_module[parameter.module].append(parameter.numel)
    return [(_PLACE.get(name, "attention"), numel) for name in _BACKWARD for numel in reversed(by_module[name])]


@dataclass(frozen=True)
class Room:
    """What one rank keeps of the gradients under ZeRO-1 and 2, in elements."""

    elements: int
    """All tensors that reach into its partition, whole."""
    oversized: int
    """Those of them that no bucket takes."""
    start: float
    """Share of the gradients that have arrived before the first of its own does: they come from the end."""


@cache
def rooms(job: Job, stage: Stage) -> tuple[Room, ...]:
    """The room that each rank makes for its own gradients under ZeRO-1 and 2.

    DeepSpeed reserves it for whole tensors (`grads_in_partition`), those cut by a boundary included, as soon as
    the first of them has been reduced.
    """
    elements, oversized = [0] * job.shards, [0] * job.shards
    for group in optimizer_groups(job, stage):
        partition = -(-sum(group) // job.shards)
        start = 0
        for numel in group:
            for rank in range(start // partition, min((start + numel - 1) // partition + 1, job.shards)):
                elements[rank] += numel
                oversized[rank] += numel * (numel > job.zero.reduce_bucket)
            start += numel
    starts = [1 - (rank + 1) / job.shards for rank in range(job.shards)]
    return tuple(Room(*room) for room in zip(elements, oversized, starts, strict=True))


def own_bytes(job: Job, stage: Stage) -> float:
    """Bytes of the largest room of any rank."""
    return job.precision.gradients * max(room.elements for room in rooms(job.layout, stage))


def bucket_bytes(job: Job) -> float:
    """Bytes of DeepSpeed's buckets while gradients are reduced.

    ZeRO-3 has one all the time, in fp32 with sequence ranks. ZeRO-1 and 2 have two where communication overlaps,
    which the pipeline engine switches off.
    """
    if job.engine != "zero" or not job.zero_stage:
        return 0.0
    if job.zero_stage == 3:
        return (FULL if job.sp > 1 else job.precision.gradients) * job.zero.reduce_bucket
    return job.precision.gradients * job.zero.reduce_bucket * (2 if overlapped(job) else 1)


def overlapped(job: Job) -> bool:
    """Whether ZeRO-1 and 2 reduce during the backward pass."""
    return job.zero_stage == 2 or (job.zero.overlap_comm and job.pp == 1)


def early_gradients(job: Job, stage: Stage) -> dict[str, float]:
    """Gradients and buckets of ZeRO-0 to 2 before a micro-batch's first gradient: those of the ones before.

    ZeRO-2 has given its buckets back by then; ZeRO-1 reduces in the last micro-batch only, and keeps them. A
    pipeline stage runs its first forward passes, one for each stage from its own on, before any backward pass.
    """
    if job.accumulation <= job.pp - stage.index:
        return {"gradients": 0.0, "buckets": 0.0}
    if job.zero_stage == 2:
        return {"gradients": 0.0 if job.offload_optimizer else own_bytes(job, stage), "buckets": 0.0}
    whole = job.precision.gradients * trained_elements(job, stage)
    return {"gradients": whole, "buckets": bucket_bytes(job)}


def late_gradients(job: Job, stage: Stage, done: float) -> dict[str, float]:
    """Gradients and buckets of ZeRO-0 to 2 during a backward pass, on the rank that has most of them.

    Args:
        job: the job.
        stage: the stage.
        done: share of the trained elements whose gradient exists.
    """
    again, whole = job.accumulation > 1, trained_elements(job, stage)
    if not job.zero_stage or not overlapped(job):
        kept = whole if again else whole * done
    elif job.offload_optimizer:
        kept = 0  # each goes to the host as soon as its bucket is reduced
    elif job.zero_stage == 2:
        # The sum over earlier micro-batches, and this one's.
        kept = max(room.elements * (again + (room.start < done)) for room in rooms(job.layout, stage))
    else:
        kept = _kept_by_zero1(job, stage, done)
    return {"gradients": job.precision.gradients * kept, "buckets": bucket_bytes(job)}


def _kept_by_zero1(job: Job, stage: Stage, done: float) -> float:
    """ZeRO-1 drops nothing before the pass ends; a gradient that a bucket took is no tensor of its own any more."""
    own = [(room.elements, room.oversized) if room.start < done else (0, 0) for room in rooms(job.layout, stage)]
    oversized = _oversized(job.layout, stage)
    if job.accumulation == 1:
        return max(room + oversized * done - large for room, large in own)
    # All of the earlier micro-batches', of which those in buckets are gone again, and its own anew.
    left = trained_elements(job, stage) - (trained_elements(job, stage) - oversized) * done
    return max(trained_elements(job, stage), *(left + room - large for room, large in own))


@cache
def _oversized(job: Job, stage: Stage) -> int:
    """Elements of tensors that no bucket takes."""
    return sum(
        p.numel for p in stage_parameters(job, stage) if p.trainable and p.numel > job.zero.reduce_bucket
    )  # fmt: skip
