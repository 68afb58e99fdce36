"""What lives between two steps, and what the optimizer's step needs on top, per rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.planner.gather import persistent_elements
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
        host, master, moments = master + moments + FULL * trained / share, 0.0, 0.0
    sharded = job.zero_stage == 3
    weights = weight_bytes(job, stage) / (job.shards if sharded else 1)
    gradients = buckets = 0.0
    if job.engine == "zero" and sharded:
        weights += precision.weights * persistent_elements(job, parameters) * (job.shards > 1)
        gradients = precision.gradients * trained / job.shards
        buckets = precision.gradients * job.zero.reduce_bucket
    elif job.engine == "ddp":
        gradients = precision.gradients * trained  # views of DDP's buckets, which are never freed
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


@cache
def partition_overhang(job: Job, stage: Stage) -> tuple[int, ...]:
    """Elements of all tensors that reach into each rank's partition under ZeRO-1 and 2.

    DeepSpeed reserves room for whole tensors (`grads_in_partition`), those cut by a boundary included.
    """
    room = [0] * job.shards
    for group in optimizer_groups(job, stage):
        partition = -(-sum(group) // job.shards)
        start = 0
        for numel in group:
            for rank in range(start // partition, min((start + numel - 1) // partition + 1, job.shards)):
                room[rank] += numel
            start += numel
    return tuple(room)


def step_temporaries(job: Job, stage: Stage) -> float:
    """Most bytes of temporaries during the optimizer's step.

    Plain AdamW makes two tensors as large as the one it steps (square root of the second moment, and its
    quotient); the fused kernel none; `foreach` one for all parameters at once. Engines step: DDP tensor by
    tensor on fp32 gradients made from all half-precision ones; ZeRO-1 and 2 one flat partition per group, while
    their gradient buffer lives on until the last group is stepped; ZeRO-3 sub-group by sub-group.
    """
    return _step_temporaries(job.layout, stage)


@cache
def _step_temporaries(job: Job, stage: Stage) -> float:
    groups = optimizer_groups(job, stage)
    trained = sum(map(sum, groups))
    if not trained or job.offload_optimizer:
        return 0.0
    precision = job.precision
    largest = max(map(max, groups))
    if job.engine == "torch" or job.zero_stage == 0:
        share = job.shards if job.zero_stage == 3 else 1
        stepped = precision.moments / 2 if precision.master == 0 else FULL
        if job.optimizer == "foreach":
            return stepped * trained / share
        gradients = FULL * trained / share if precision.master else 0.0
        return gradients + (2 * stepped * largest / share if job.optimizer == "plain" else 0.0)
    per_element = FULL + (2 * FULL if job.optimizer == "plain" else 0)
    if job.zero_stage == 3:
        return per_element * largest_subgroup(job, stage)
    partition = max(-(-sum(group) // job.shards) for group in groups)
    reserved = precision.gradients * max(partition_overhang(job, stage))
    # The fp32 gradient is cast from a flat copy, which is dropped before the step.
    flattened = precision.gradients + FULL
    return reserved + max(per_element, flattened) * partition
