"""What lives between two steps, and what the optimizer's step needs on top, per rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.planner.gather import persistent_elements
from bench.planner.gradients import bucket_bytes, own_bytes
from bench.planner.job import FULL, HALF, Job
from bench.planner.parameters import Stage, block_parameters, count, optimizer_groups, stage_parameters

NF4_BYTES = 0.5 + FULL / 64
"""NF4: 4 bits, and one fp32 scale for 64 values (QLoRA, arXiv:2305.14314, §3)."""
NF4_DOUBLE_BYTES = 0.5 + 1 / 64 + FULL / (64 * 256)
"""Scales quantised to 8 bits in blocks of 256 (same, double quantisation)."""
GPTQ4_BYTES = 0.5 + (HALF + 0.5) / 128
"""4 bits, and for each group of 128 one half-precision scale and one 4-bit zero point (AutoGPTQ)."""
DEEPSPEED_FLAT_BUCKET = 500_000_000
"""Elements that ZeRO-0 flattens at a time for its all-reduce (engine.buffered_allreduce_fallback)."""

NORM_BYTES = 8
"""DeepSpeed takes the norm of each tensor's gradient from a copy in fp64 (`get_norm_dtype`)."""


@dataclass(frozen=True)
class States:
    """Bytes of one rank between two steps."""

    weights: float
    gradients: float
    """Those that stay allocated between steps."""
    master_weights: float
    optimizer_state: float
    buckets: float
    host: float
    """In host memory under offload, not on the device."""

    @property
    def resident(self) -> float:
        """On the device."""
        return self.weights + self.gradients + self.master_weights + self.optimizer_state + self.buckets


def trained_share(job: Job) -> int:
    """Ranks among which masters and moments are split: all replicas from ZeRO-1 on."""
    return job.shards if job.zero_stage >= 1 else 1


def states(job: Job, stage: Stage) -> States:
    """Bytes that live between steps on a rank of this stage."""
    return _states(job.layout, stage)


@cache
def _states(job: Job, stage: Stage) -> States:
    precision = job.precision
    parameters = stage_parameters(job, stage)
    trained = count(parameters, trainable=True)
    share = trained_share(job)
    master, moments = precision.master * trained / share, precision.moments * trained / share
    host = 0.0
    if job.offload_optimizer:
        # CPUAdam steps fp32 masters from fp32 gradients, all in host memory (ZeRO-Offload, arXiv:2101.06840).
        # ZeRO-3 keeps the reduced gradients there too, ZeRO-1 and 2 the weights on their way back.
        host = master + moments + (FULL + precision.gradients) * trained / share
        master = moments = 0.0
    sharded = job.zero_stage == 3
    weights = weight_bytes(job, stage) / (job.shards if sharded else 1)
    gradients = buckets = 0.0
    if job.engine == "zero" and sharded:
        weights += precision.weights * persistent_elements(job, parameters) * (job.shards > 1)
        gradients = 0.0 if job.offload_optimizer else precision.gradients * trained / job.shards
        buckets = bucket_bytes(job)
    elif job.engine == "ddp":
        gradients = precision.gradients * trained  # views of DDP's buckets, which are never freed
    elif job.offload_optimizer:
        # ZeRO-1 and 2 stage every gradient in a buffer as large as the largest, one on each side.
        buckets = precision.gradients * max((p.numel for p in parameters if p.trainable), default=0)
        host += buckets + (own_bytes(job, stage) if job.accumulation > 1 else 0.0)
    return States(weights, gradients, master, moments, buckets, host)


def weight_bytes(job: Job, stage: Stage) -> float:
    """Weights and adapters of a whole stage; a quantised base quantises the blocks' matrices alone."""
    precision = job.precision
    parameters = stage_parameters(job, stage)
    adapters = count(parameters, adapter=True)
    base = count(parameters, adapter=False)
    if precision.weights >= HALF:
        return precision.weights * base + precision.adapters * adapters
    packed = sum(p.numel for p in block_parameters(job) if p.matrix and not p.adapter) * stage.layers
    return precision.weights * packed + precision.compute * (base - packed) + precision.adapters * adapters


@cache
def largest_subgroup(job: Job, stage: Stage) -> int:
    """Elements of ZeRO-3's largest sub-group: shards are added in order until `sub_group_size` is reached."""
    largest = 0
    for group in optimizer_groups(job, stage):
        size = 0
        for numel in group:
            size += -(-numel // job.shards)
            largest = max(largest, size)
            if size >= job.zero.sub_group:
                size = 0
    return largest


def step_bytes(job: Job, stage: Stage) -> dict[str, float]:
    """Most bytes of gradients and temporaries during the optimizer's step, beside what is held.

    Plain AdamW makes two tensors as large as the one it steps (square root of the second moment, and its
    quotient); the fused kernel none; `foreach` one for all parameters at once. Engines step: DDP tensor by
    tensor on fp32 gradients made from all half-precision ones; ZeRO-1 and 2 one flat partition per group; ZeRO-3
    sub-group by sub-group.
    """
    return dict(_step_bytes(job.layout, stage))


def _plain_elements(groups: tuple[tuple[int, ...], ...]) -> int:
    """Most elements that plain AdamW makes: two as large as the tensor it steps, and the quotient of the last."""
    return max(2 * numel + before for group in groups for before, numel in zip((0, *group), group, strict=False))


@cache
def _step_bytes(job: Job, stage: Stage) -> dict[str, float]:
    groups = optimizer_groups(job, stage)
    trained = sum(map(sum, groups))
    if not trained or job.offload_optimizer:
        return {"gradients": 0.0, "temporaries": 0.0}
    precision = job.precision
    largest = max(map(max, groups))
    if job.engine == "torch" or job.zero_stage == 0:
        share = job.shards if job.zero_stage == 3 else 1
        stepped = precision.moments / 2 if precision.master == 0 else FULL
        if job.optimizer == "foreach":
            return {"temporaries": stepped * trained / share}
        gradients = FULL * trained / share if precision.master else 0.0
        return {
            "temporaries": gradients + (stepped * _plain_elements(groups) / share if job.optimizer == "plain" else 0.0)
        }
    stepping = FULL + (2 * FULL if job.optimizer == "plain" else 0)
    # The fp32 gradient is cast from a flat copy, which is dropped before the step; fp32 ones need no cast.
    flattening = precision.gradients + (FULL if precision.gradients < FULL else 0)
    if job.zero_stage == 3:
        norm = NORM_BYTES * -(-largest // job.shards)
        return {"temporaries": max(max(stepping, flattening) * largest_subgroup(job, stage), norm)}
    partition = max(-(-sum(group) // job.shards) for group in groups)
    norm = NORM_BYTES * min(largest, partition)
    own = own_bytes(job, stage)
    # One buffer holds the gradients of all groups: it is dropped when the last group has taken its own.
    if len(groups) > 1:
        return {"gradients": own, "temporaries": max(stepping * partition, flattening * partition, norm)}
    before = max(flattening * partition, norm)
    if own + before > stepping * partition:
        return {"gradients": own, "temporaries": before}
    return {"gradients": 0.0, "temporaries": stepping * partition}
