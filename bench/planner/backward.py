"""Moments of the backward pass that can hold the peak: at the head, in blocks, at the embedding."""

from __future__ import annotations

from bench.planner.gradients import BlockArrivals, done_before
from bench.planner.parameters import block_parameters, embedding, head, trained_elements
from bench.planner.parts import Moment, Parts, early, late, moment, shared_tables
from bench.planner.states import DEEPSPEED_FLAT_BUCKET

FSDP_OVERLAPPING_BLOCKS = 0.92
"""FSDP1 with checkpointing keeps most of the previous block's recomputed tensors alive. Not derived: eight pairs of
public runs (fms-acceleration, Mistral-7B and Llama-3-8B) that differ in sharding alone differ by 60 hidden
states of 65 per token. DeepSpeed does not do this."""


def backward(parts: Parts) -> list[Moment]:
    job = parts.job
    moments = [*_backward_at_head(parts), *_backward_in_blocks(parts)]
    if job.engine != "torch" and parts.stage.first and not job.lora:
        moments.append(_backward_at_embedding(parts))
    if job.engine == "zero" and job.zero_stage == 0 and job.shards > 1:
        trained = trained_elements(job, parts.stage)
        flat = min(trained, DEEPSPEED_FLAT_BUCKET) * job.precision.gradients
        moments.append(moment(parts, "backward", "all-reduce of the gradients", temporaries=flat, **late(parts, 1.0)))
    return moments


def _backward_at_head(parts: Parts) -> list[Moment]:
    """At the loss, when the output head's own gradient is made, and when it is reduced; on the last stage only."""
    job = parts.job
    if not parts.stage.last:
        return []
    e, kept, before = job.precision.compute, parts.kept + parts.around, early(parts)
    flowing = job.tokens * parts.block.hidden
    weight = 0.0 if job.lora else job.precision.gradients * head(job).numel
    moments = [
        moment(
            parts, "backward", "at the loss", activations=kept, logits=parts.logits["backward"],
            gathered=e * parts.fetched.loss, **before,
        ),
        moment(
            parts, "backward", "gradient of the output head", activations=kept, logits=parts.logits["head"],
            gathered=e * parts.fetched.head, temporaries=weight + flowing, **before,
        ),
    ]  # fmt: skip
    if parts.arriving.head and job.engine == "zero":
        moments.append(
            moment(
                parts, "backward", "reducing the output head's gradient", activations=kept,
                gathered=e * parts.fetched.block, temporaries=parts.arriving.head + flowing,
                **late(parts, done_before(job, parts.stage, 0)),
            )
        )  # fmt: skip
    return moments


def _backward_in_blocks(parts: Parts) -> list[Moment]:
    """In the last block, where most activations are left, in the first, where most gradients are there, and where
    reducing gradients takes most."""
    job, layers = parts.job, parts.stage.layers
    moments = []
    for run in parts.arriving.telling:
        left = layers - run
        at = "in the last block" if run == 0 else "in the first block" if left == 1 else "in a block"
        kept, temporaries = _in_block(parts, left, parts.arriving.blocks[run])
        gathered_elements = parts.fetched.first if left == 1 else parts.fetched.block
        moments.append(
            moment(
                parts, "backward", at, activations=kept, temporaries=temporaries,
                gathered=job.precision.compute * gathered_elements,
                **late(parts, done_before(job, parts.stage, run)),
            )
        )  # fmt: skip
    return moments


def _in_block(parts: Parts, blocks_left: int, arriving: BlockArrivals) -> tuple[float, float]:
    """Kept activations and temporaries at the widest moment of a block's backward pass."""
    job, block = parts.job, parts.block
    waiting = blocks_left if job.gradient_checkpointing else blocks_left - 1
    outer = parts.kept * waiting / parts.stage.layers + shared_tables(job)
    if job.engine == "torch" and job.zero_stage == 3 and job.gradient_checkpointing:
        outer += FSDP_OVERLAPPING_BLOCKS * block.peak * job.tokens
    # A quantised matrix is unpacked for its own product, one at a time.
    e = job.precision.compute
    beside = max(p.numel for p in block_parameters(job)) * e if job.precision.weights < e else 0.0
    if job.shape.tied and parts.stage.first and parts.stage.last and not job.lora:
        beside += job.precision.gradients * head(job).numel  # autograd adds the embedding's to it at the end
    moments = [
        (outer + kept * job.tokens, beside + temporaries * job.tokens + getattr(arriving, place))
        for place, kept, temporaries in block.backward
    ]
    return max(moments, key=sum)


def _backward_at_embedding(parts: Parts) -> Moment:
    """The last gradient of a stage that holds the embedding, and the last bucket; no block keeps anything any more."""
    job = parts.job
    table = embedding(job).numel
    tied = job.precision.gradients * table if job.shape.tied and parts.stage.last else 0.0
    gathered = job.precision.compute * table if parts.fetched.block and table > job.zero.persistence_threshold else 0.0
    return moment(
        parts, "backward", "gradient of the embedding", gathered=gathered,
        temporaries=parts.arriving.end + tied + job.tokens * parts.block.hidden,
        **late(parts, 1 - table / trained_elements(job, parts.stage)),
    )  # fmt: skip
