"""Device memory of a rank: components at every moment that can hold the peak, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bench.planner.activations import block_bytes, first_block_discount
from bench.planner.backward import backward
from bench.planner.gather import Gathered, gathered
from bench.planner.gradients import arrivals, bucket_bytes, overlapped, own_bytes
from bench.planner.job import FULL, Job
from bench.planner.logits import logits_bytes
from bench.planner.parameters import Stage, block_parameters, count, stage_parameters, stages_of, trained_elements
from bench.planner.parts import Moment, Parts, early, late, moment, shared_tables
from bench.planner.states import states, step_bytes

PIPELINE_BUFFERS = 2
"""DeepSpeed's pipeline engine has at least so many on a stage (`TrainSchedule.num_pipe_buffers`)."""


@dataclass(frozen=True)
class RankMemory:
    """The memory of the ranks of one pipeline stage: tensors alone, without context and fragmentation."""

    stage: Stage
    steady: Moment
    moments: tuple[Moment, ...]
    host_bytes: float
    """Host memory of this rank under offload."""

    @cached_property
    def peak(self) -> Moment:
        """The widest moment."""
        return max(self.moments, key=lambda moment: moment.total)

    def phase_peak(self, phase: str) -> Moment:
        """The widest moment of one phase."""
        return max((m for m in self.moments if m.phase == phase), key=lambda m: m.total)


def rank_memories(job: Job) -> list[RankMemory]:
    """Memory of the fullest rank of every pipeline stage."""
    return [_stage_memory(job, stage) for stage in stages_of(job)]


def fullest(job: Job) -> RankMemory:
    """The stage whose ranks need most."""
    return max(rank_memories(job), key=lambda memory: memory.peak.total)


def _stage_memory(job: Job, stage: Stage) -> RankMemory:
    held, block, tokens = states(job, stage), block_bytes(job), job.tokens
    sharded = job.zero_stage == 3 and job.shards > 1
    in_flight = min(job.pp - stage.index, job.accumulation) if job.pp > 1 else 1
    piped = job.pp > 1 and job.zero_stage < 3
    if job.gradient_checkpointing:
        one = stage.layers * block.hidden * tokens
    else:
        one = stage.layers * block.saved * tokens - first_block_discount(job) * tokens * stage.first
    if piped:  # its buffers hold a clone of each received input, and each output until it is used again
        one += (min(stage.index, 1) + (not stage.last)) * block.hidden * tokens
    logits = logits_bytes(job) if stage.last else dict.fromkeys(("forward", "backward", "head"), 0.0)
    output = job.precision.compute * job.shape.vocab * tokens if piped and stage.last else 0.0
    logits["forward"] -= output  # this micro-batch's is among those kept
    parts = Parts(
        job, stage, held, block, logits,
        _fetched(job, stage) if sharded else Gathered(0, 0, 0, 0, 0, 0), arrivals(job, stage), kept=one * in_flight,
        around=_around(job, stage), batch=16.0 * tokens,
        outputs=output * min(PIPELINE_BUFFERS, job.accumulation),
    )  # fmt: skip
    steady = moment(parts, "step", "between steps", gradients=held.gradients, buckets=held.buckets)
    moments = (*_forward(parts), *backward(parts), *_step(parts), _save(parts))
    return RankMemory(stage, steady, moments, held.host)


def _fetched(job: Job, stage: Stage) -> Gathered:
    """Elements gathered: by DeepSpeed's rules, or under FSDP the root unit (embedding and head) and one block."""
    if job.engine == "zero":
        return gathered(job, stage)
    block = count(block_parameters(job))
    outside = count(stage_parameters(job, stage)) - stage.layers * block
    if job.precision.weights < job.precision.compute:
        block = round(block * job.precision.weights / job.precision.compute)  # gathered as it is packed
    return Gathered(outside, outside + block, outside, outside, outside + block, outside + block)


def _around(job: Job, stage: Stage) -> float:
    """Rotary tables (cosine and sine, and int64 positions), and on the last stage the final norm and head's input."""
    e, h = job.precision.compute, job.shape.hidden
    total = shared_tables(job)
    if stage.last:
        # The final norm's fp32 input, its statistics, and what trained weights need: its rounded input, the head's.
        total += job.tokens * (FULL * h + FULL + (0 if job.lora else 2 * e * h))
    return total


def _left_over(parts: Parts) -> dict[str, float]:
    """The embedding's output and its gradient, which outlive the backward pass of LoRA with checkpointing.

    PEFT makes that output a leaf that needs a gradient; the worker holds the loss, and so its graph, until
    the next micro-batch's loss is there.
    """
    job = parts.job
    kept = job.lora and job.gradient_checkpointing and parts.stage.first and job.engine != "torch"
    return dict.fromkeys(("activations", "temporaries"), job.tokens * parts.block.hidden if kept else 0.0)


def _forward(parts: Parts) -> list[Moment]:
    job = parts.job
    e, h = job.precision.compute, job.shape.hidden
    before, kept = early(parts), parts.kept + parts.around
    over = 0.0 if job.accumulation == 1 else _left_over(parts)["activations"]
    kept += over
    moments = [
        moment(
            parts, "forward", "at the loss", activations=kept, logits=parts.logits["forward"],
            gathered=e * parts.fetched.loss, temporaries=over, **before,
        ),
        moment(
            parts, "forward", "gathering the widest layer", activations=kept,
            gathered=e * parts.fetched.forward, temporaries=over + job.tokens * e * h, **before,
        ),
    ]  # fmt: skip
    if job.gradient_checkpointing:
        moments.append(
            moment(
                parts, "forward", "in a block", activations=kept + job.tokens * parts.block.forward,
                gathered=e * parts.fetched.inside, temporaries=over, **before,
            )
        )  # fmt: skip
    return moments if parts.stage.last else moments[1:]


def _step(parts: Parts) -> list[Moment]:
    job, stage = parts.job, parts.stage
    held = late(parts, 1.0)
    if job.engine == "zero" and job.zero_stage in (1, 2):
        held = {"gradients": 0.0, "buckets": parts.held.buckets}
    stepping, over = step_bytes(job, stage), _left_over(parts)
    over["temporaries"] += stepping.pop("temporaries")
    moments = [moment(parts, "step", "optimizer", **{**held, **stepping, **over})]
    if job.accumulation > 1 and job.pp == 1:
        moments.append(moment(parts, "step", "between micro-batches", **{**early(parts), **_left_over(parts)}))
    if job.engine == "zero" and job.zero_stage == 1 and not overlapped(job):
        moments += _late_reduction(parts)
    return moments


def _late_reduction(parts: Parts) -> list[Moment]:
    """Without overlap ZeRO-1 reduces after the last backward pass; the pipeline engine makes one more bucket."""
    job, stage = parts.job, parts.stage
    whole, buckets = job.precision.gradients * trained_elements(job, stage), bucket_bytes(job) * (1 + (job.pp > 1))
    moved = min(whole, job.precision.gradients * job.zero.reduce_bucket)
    own = own_bytes(job, stage)
    copy = moved if job.shards > 1 else 0.0
    return [
        moment(parts, "step", "before the reduction", gradients=whole, buckets=buckets),
        moment(parts, "step", "reduction", gradients=whole - moved + own, buckets=buckets + copy),
    ]


def _save(parts: Parts) -> Moment:
    """Export gathers one tensor at a time under ZeRO-3; the others write what they hold."""
    job = parts.job
    whole = 0.0
    if job.zero_stage == 3 and job.shards > 1:
        whole = job.precision.compute * max((p.numel for p in stage_parameters(job, parts.stage)), default=0)
    held = parts.held
    return moment(parts, "save", "export", gathered=whole, gradients=held.gradients, buckets=held.buckets)
