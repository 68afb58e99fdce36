"""Device memory of a rank: components at every moment that can hold the peak, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bench.planner.activations import BlockBytes, block_bytes, first_block_discount
from bench.planner.gather import Gathered, gathered
from bench.planner.job import FULL, Job
from bench.planner.logits import logits_bytes
from bench.planner.parameters import Stage, block_parameters, count, head, stage_parameters, stages_of, trained_elements
from bench.planner.states import DEEPSPEED_FLAT_BUCKET, States, states, step_temporaries

COMPONENTS = (
    "weights", "gradients", "master_weights", "optimizer_state", "activations", "logits", "gathered",
    "buckets", "batch", "temporaries",
)  # fmt: skip
FSDP_OVERLAPPING_BLOCKS = 0.92
"""FSDP1 with checkpointing keeps most of the previous block's recomputed tensors alive. Not derived: eight pairs of
public runs (fms-acceleration, Mistral-7B and Llama-3-8B) that differ in sharding alone differ by 60 hidden
states of 65 per token. DeepSpeed does not do this."""
PHASES = ("forward", "backward", "step", "save")


@dataclass(frozen=True)
class Moment:
    """Bytes by component at one moment of a step."""

    phase: str
    at: str
    """What happens then, in words."""
    components: dict[str, float]

    @property
    def total(self) -> float:
        """All components."""
        return sum(self.components.values())


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


@dataclass(frozen=True)
class _Parts:
    """Everything the moments are put together from."""

    job: Job
    stage: Stage
    held: States
    block: BlockBytes
    logits: dict[str, float]
    fetched: Gathered
    kept: float
    """Activations kept for backward by all blocks in flight."""
    around: float
    """Kept outside of the blocks: rotary tables, final norm, the head's input."""
    batch: float


def _stage_memory(job: Job, stage: Stage) -> RankMemory:
    held, block, tokens = states(job, stage), block_bytes(job), job.tokens
    sharded = job.zero_stage == 3 and job.shards > 1
    in_flight = min(job.pp - stage.index, job.accumulation) if job.pp > 1 else 1
    if job.gradient_checkpointing:
        one = stage.layers * block.hidden * tokens
    else:
        one = stage.layers * block.saved * tokens - first_block_discount(job) * tokens * stage.first
    parts = _Parts(
        job, stage, held, block,
        logits_bytes(job) if stage.last else dict.fromkeys(("forward", "backward", "head"), 0.0),
        _fetched(job, stage) if sharded else Gathered(0, 0, 0, 0), kept=one * in_flight,
        around=_around(job, stage), batch=16.0 * tokens,
    )  # fmt: skip
    steady = _moment(parts, "step", "between steps", gradients=held.gradients, buckets=held.buckets)
    moments = (*_forward(parts), *_backward(parts), *_step(parts), _save(parts))
    return RankMemory(stage, steady, moments, held.host)


def _fetched(job: Job, stage: Stage) -> Gathered:
    """Elements gathered: by DeepSpeed's rules, or under FSDP the root unit (embedding and head) and one block."""
    if job.engine == "zero":
        return gathered(job, stage)
    block = count(block_parameters(job))
    outside = count(stage_parameters(job, stage)) - stage.layers * block
    if job.precision.weights < job.precision.compute:
        block = round(block * job.precision.weights / job.precision.compute)  # gathered as it is packed
    return Gathered(outside, outside, outside, outside + block)


def _shared_tables(job: Job) -> float:
    """Cosine and sine in the compute type, int64 positions, and the eager kernel's causal mask, one for all blocks."""
    e = job.precision.compute
    mask = e * job.seq_len * job.tokens if job.attention == "eager" else 0
    return 2 * e * job.shape.head_dim * job.seq_len / job.sp + 8.0 * job.seq_len + mask


def _around(job: Job, stage: Stage) -> float:
    """Rotary tables (cosine and sine, and int64 positions), and on the last stage the final norm and head's input."""
    e, h = job.precision.compute, job.shape.hidden
    total = _shared_tables(job)
    if stage.last:
        # The final norm's fp32 input, its statistics, and what trained weights need: its rounded input, the head's.
        total += job.tokens * (FULL * h + FULL + (0 if job.lora else 2 * e * h))
    return total


def _moment(parts: _Parts, phase: str, at: str, **more: float) -> Moment:
    held = parts.held
    components = {
        "weights": held.weights, "master_weights": held.master_weights,
        "optimizer_state": held.optimizer_state, "batch": parts.batch, **more,
    }  # fmt: skip
    return Moment(phase, at, {name: components.get(name, 0.0) for name in COMPONENTS})


def _gradients(parts: _Parts, done: float) -> dict[str, float]:
    """Gradients and buckets when a share of the trained parameters has its gradient.

    DDP and ZeRO-3 hold theirs all the time. ZeRO-0 and 1 keep whole gradients until the step. ZeRO-2 keeps
    its partition and frees the rest, bucket by bucket. With accumulation the earlier micro-batches' are there.
    """
    job, held = parts.job, parts.held
    if job.engine == "ddp" or (job.engine == "zero" and job.zero_stage == 3):
        return {"gradients": held.gradients, "buckets": held.buckets}
    trained = trained_elements(job, parts.stage)
    whole = job.precision.gradients * trained
    if job.engine == "torch":
        return {"gradients": whole / (job.shards if job.zero_stage == 3 else 1) * done, "buckets": 0.0}
    doubled = 2 if job.zero.overlap_comm else 1
    bucket = job.precision.gradients * job.zero.reduce_bucket * doubled if job.zero_stage else 0.0
    kept = whole / job.shards if job.zero_stage == 2 else whole
    return {"gradients": kept * (1.0 if job.accumulation > 1 else done), "buckets": bucket}


def _before_gradients(parts: _Parts) -> dict[str, float]:
    """What earlier micro-batches left before a backward pass has its first gradient, which makes DeepSpeed's buckets.

    ZeRO-2 drops them with every backward pass, ZeRO-1 keeps them until the step (`_release_ipg_buffers`).
    """
    job, early = parts.job, _gradients(parts, 0.0)
    if job.engine == "zero" and (job.zero_stage == 2 or (job.zero_stage < 2 and job.accumulation == 1)):
        early["buckets"] = 0.0
    return early


def _forward(parts: _Parts) -> list[Moment]:
    job = parts.job
    e, h = job.precision.compute, job.shape.hidden
    early = _before_gradients(parts)
    gathered_bytes = job.precision.compute
    kept = parts.kept + parts.around
    moments = [
        _moment(
            parts, "forward", "at the loss", activations=kept, logits=parts.logits["forward"],
            gathered=gathered_bytes * parts.fetched.loss, **early,
        ),
        _moment(
            parts, "forward", "gathering the widest layer", activations=kept,
            gathered=gathered_bytes * parts.fetched.forward, temporaries=job.tokens * e * h, **early,
        ),
    ]  # fmt: skip
    if job.gradient_checkpointing:
        moments.append(
            _moment(
                parts, "forward", "in a block", activations=kept, temporaries=job.tokens * parts.block.forward,
                gathered=gathered_bytes * parts.fetched.block, **early,
            )
        )  # fmt: skip
    return moments if parts.stage.last else moments[1:]


def _backward(parts: _Parts) -> list[Moment]:
    job = parts.job
    moments = [*_backward_at_head(parts), *_backward_in_blocks(parts)]
    if job.engine == "zero" and job.zero_stage == 0 and job.shards > 1:
        trained = trained_elements(job, parts.stage)
        flat = min(trained, DEEPSPEED_FLAT_BUCKET) * job.precision.gradients
        grads = _gradients(parts, 1.0)
        moments.append(_moment(parts, "backward", "all-reduce of the gradients", temporaries=flat, **grads))
    return moments


def _backward_at_head(parts: _Parts) -> list[Moment]:
    """At the loss, and when the output head's own gradient is made; on the last stage only."""
    job = parts.job
    if not parts.stage.last:
        return []
    e, kept, early = job.precision.compute, parts.kept + parts.around, _before_gradients(parts)
    weight = 0 if job.lora else job.precision.gradients * head(job).numel
    return [
        _moment(
            parts, "backward", "at the loss", activations=kept, logits=parts.logits["backward"],
            gathered=e * parts.fetched.loss, **early,
        ),
        _moment(
            parts, "backward", "gradient of the output head", activations=kept, logits=parts.logits["head"],
            gathered=e * parts.fetched.head, temporaries=weight + job.tokens * parts.block.hidden, **early,
        ),
    ]  # fmt: skip


def _backward_in_blocks(parts: _Parts) -> list[Moment]:
    """In the last block, where most activations are left, and in the first, where most gradients are there.

    In between both change linearly, so that one of the two holds the peak.
    """
    job, stage, block = parts.job, parts.stage, parts.block
    e, tokens = job.precision.compute, job.tokens
    tables = _shared_tables(job)
    total = max(trained_elements(job, stage), 1)
    one = count(block_parameters(job), trainable=True)
    outside = total - one * stage.layers
    matrix = max((p.numel for p in block_parameters(job) if p.trainable), default=0)
    # A quantised matrix is unpacked for its own product, one at a time.
    unpacked = max(p.numel for p in block_parameters(job)) * e if job.precision.weights < e else 0
    overlapping = FSDP_OVERLAPPING_BLOCKS if job.engine == "torch" and job.zero_stage == 3 else 0
    inside = block.attention_part * tokens
    moments = []
    for at, blocks_left, done in (
        ("in the last block", stage.layers, outside / 2 if stage.last else 0),
        ("in the first block", 1, total - one - (outside / 2 if stage.first else 0)),
    ):
        waiting = blocks_left if job.gradient_checkpointing else blocks_left - 1
        saved = parts.kept * waiting / stage.layers
        if job.gradient_checkpointing:
            saved += overlapping * block.peak * tokens
        transient = block.peak * tokens - inside + job.precision.gradients * matrix + unpacked
        moments.append(
            _moment(
                parts, "backward", at, activations=saved + inside + tables, temporaries=transient,
                gathered=e * parts.fetched.block, **_gradients(parts, done / total),
            )
        )  # fmt: skip
    return moments


def _step(parts: _Parts) -> list[Moment]:
    job = parts.job
    grads = _gradients(parts, 1.0)
    if job.engine == "zero" and job.zero_stage in (1, 2):
        # Reduced gradients sit in one buffer of the partition, counted with the step's temporaries.
        grads = {"gradients": 0.0, "buckets": 0.0}
    return [_moment(parts, "step", "optimizer", temporaries=step_temporaries(job, parts.stage), **grads)]


def _save(parts: _Parts) -> Moment:
    """Export gathers one tensor at a time under ZeRO-3; the others write what they hold."""
    job = parts.job
    whole = 0.0
    if job.zero_stage == 3 and job.shards > 1:
        whole = job.precision.compute * max((p.numel for p in stage_parameters(job, parts.stage)), default=0)
    held = parts.held
    return _moment(parts, "save", "export", gathered=whole, gradients=held.gradients, buckets=held.buckets)
