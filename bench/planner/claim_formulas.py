"""The formula behind each kind of claim, as a function of the claim's fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.planner.activations import block_bytes
from bench.planner.fit import cheapest
from bench.planner.job import FULL, HALF, Job, Precision, ZeroOptions
from bench.planner.memory import fullest
from bench.planner.parameters import stages_of
from bench.planner.speed import speed_of
from bench.planner.states import NF4_DOUBLE_BYTES
from bench.planner.states import states as held_states
from bench.spec.flops import model_flops_per_token
from bench.spec.hardware import gpu
from bench.spec.models import shape_of

Fields = dict[str, Any]
MOMENTS = {"adamw": 2.0 * FULL, "adamw-bf16": 2.0 * HALF, "adam8bit": 2 * (1 + FULL / 256)}
"""Bytes of Adam's two moments per parameter; 8-bit ones have one fp32 scale for 256 values (arXiv:2110.02861)."""


@dataclass(frozen=True)
class Reference:
    """The formula's answer for one fully stated configuration."""

    value: float
    floor: float | None = None
    """Nothing can be below this, whatever the document left out of its sum."""
    ceiling: float | None = None


def job_from(fields: Fields) -> Job:
    """The job that a claim's fields describe; what is absent has the suite's usual value."""
    half = fields.get("precision", "bf16") != "fp32"
    element = HALF if half else FULL
    weights = NF4_DOUBLE_BYTES if fields.get("precision") == "nf4" else element
    masters = fields.get("masters", "yes" if half else "no") == "yes"
    lora = fields.get("tuning", "full") == "lora"
    stage = fields.get("zero_stage", 0)
    return Job(
        shape=shape_of(fields["model"]), tuning="lora" if lora else "full", micro_batch=fields.get("micro_batch", 1),
        seq_len=fields.get("seq_len", 2048), engine="zero" if stage else "ddp", zero_stage=stage,
        world_size=fields.get("gpus", 1), gradient_checkpointing=fields.get("gradient_checkpointing") == "yes",
        attention=fields.get("attention", "flash"), lora_rank=fields.get("lora_rank", 8) if lora else 0,
        targets=tuple(fields.get("target_modules", "all-linear").split()) if lora else (),
        precision=Precision(
            compute=element, weights=weights, gradients=element, adapters=element, master=FULL * masters,
            moments=MOMENTS[fields.get("optimizer", "adamw")],
        ),
        zero=ZeroOptions(reduce_bucket=50_000_000, prefetch_bucket=50_000_000),
    )  # fmt: skip


def peak(fields: Fields) -> Reference:
    job = job_from(fields)
    floor = held_states(job, stages_of(job)[0])
    # The floor holds weights, gradients and optimizer state, and nothing else; masters only where stated.
    needed = floor.resident - floor.buckets - (0 if "masters" in fields else floor.master_weights)
    return Reference(fullest(job).peak.total, floor=needed)


def all_states(fields: Fields) -> Reference:
    job = job_from(fields)
    held = held_states(job, stages_of(job)[0])
    return Reference(held.resident, floor=held.resident - ("masters" not in fields) * held.master_weights)


def component(name: str) -> Callable[[Fields], Reference]:
    def compute(fields: Fields) -> Reference:
        job = job_from(fields)
        held = getattr(held_states(job, stages_of(job)[0]), name)
        if name == "weights" and fields.get("precision") == "nf4":
            return Reference(held, floor=0.5 * job.shape.parameters)
        return Reference(held)

    return compute


def activations(fields: Fields) -> Reference:
    """Kept for backward, and the widest block on top under checkpointing; logits apart."""
    job = job_from(fields)
    block, tokens, layers = block_bytes(job), job.tokens, job.shape.layers
    if job.gradient_checkpointing:
        return Reference((layers * block.hidden + block.peak) * tokens, floor=layers * block.hidden * tokens)
    return Reference(layers * block.saved * tokens)


def checkpointing_saving(fields: Fields) -> Reference:
    kept, all_kept = (activations({**fields, "gradient_checkpointing": flag}).value for flag in ("yes", "no"))
    return Reference(100 * (1 - kept / all_kept))


def checkpointing_slowdown(fields: Fields) -> Reference:
    with_it, without = (speed({**fields, "gradient_checkpointing": flag}).value for flag in ("yes", "no"))
    return Reference(100 * (1 - with_it / without))


def recompute_share(fields: Fields) -> Reference:
    flops = model_flops_per_token(shape_of(fields["model"]), fields.get("seq_len", 2048), fields["tuning"],
                                  fields.get("lora_rank"), None, gradient_checkpointing=True)  # fmt: skip
    return Reference(100 * (flops.hardware / flops.model - 1))


def activation_share(fields: Fields) -> Reference:
    peak = fullest(job_from(fields)).peak
    inside = sum(peak.components[name] for name in ("activations", "logits", "temporaries"))
    return Reference(100 * inside / peak.total)


def growth(what: Callable[[Fields], Reference]) -> Callable[[Fields], Reference]:
    """Factor by which something grows from the claim's sequence (or batch) to the other one."""

    def compute(fields: Fields) -> Reference:
        other = {key.removeprefix("other_"): v for key, v in fields.items() if key.startswith("other_")}
        return Reference(what({**fields, **other}).value / what(fields).value)

    return compute


def peak_difference(fields: Fields) -> Reference:
    other = {{"other_rank": "lora_rank"}.get(key, key.removeprefix("other_")): v
             for key, v in fields.items() if key.startswith("other_")}  # fmt: skip
    return Reference(peak({**fields, **other}).value - peak(fields).value)


def rank_cost(fields: Fields) -> Reference:
    return Reference(100 * peak_difference(fields).value / peak(fields).value)


def module_saving(fields: Fields) -> Reference:
    """Weights, gradients, masters and moments of the adapters of the named modules."""
    job = job_from({**fields, "tuning": "lora"})
    per = job.precision.adapters + job.precision.gradients + job.precision.master + job.precision.moments
    return Reference(per * job.shape.lora_parameters(job.lora_rank, job.targets))


def adapter_bytes(per_layer: bool) -> Callable[[Fields], Reference]:
    def compute(fields: Fields) -> Reference:
        job = job_from({**fields, "tuning": "lora"})
        shape = job.shape
        count = shape.lora_parameters_per_layer if per_layer else shape.lora_parameters
        return Reference(job.precision.adapters * count(job.lora_rank, job.targets))

    return compute


def layer_adapters_and_gradients(fields: Fields) -> Reference:
    return Reference(2 * adapter_bytes(True)(fields).value)


def knob_range(fields: Fields) -> Reference:
    """Largest saving between two settings of batch, sequence, checkpointing, kernel and precision."""
    peaks = [
        peak({**fields, "micro_batch": b, "seq_len": s, "gradient_checkpointing": g, "precision": p}).value
        for b in (1, 4, 8) for s in (1024, 2048, 4096) for g in ("yes", "no") for p in ("bf16", "fp32")
    ]  # fmt: skip
    return Reference(100 * (1 - min(peaks) / max(peaks)))


def attention_saving(fields: Fields) -> Reference:
    eager, flash = (peak({**fields, "attention": kernel}).value for kernel in ("eager", "flash"))
    return Reference(100 * (1 - flash / eager))


def lora_ratio(fields: Fields) -> Reference:
    lora, full = (peak({**fields, "tuning": arm}).value for arm in ("lora", "full"))
    return Reference(100 * lora / full)


def speed(fields: Fields) -> Reference:
    device, job = gpu(fields.get("gpu", "a100-80gb")), job_from(fields)
    flops = model_flops_per_token(job.shape, job.seq_len, job.tuning, job.lora_rank, job.targets)
    ceiling = job.world_size * device.half_flops / (flops.model * job.seq_len)
    return Reference(speed_of(job, device, 8, False).samples_per_s, ceiling=ceiling)


def speed_ratio(fields: Fields) -> Reference:
    """LoRA over full on one layout; no arithmetic saves more than 6 to 4 (see `bench.spec.flops`)."""
    lora, full = (speed({**fields, "tuning": arm}).value for arm in ("lora", "full"))
    return Reference(lora / full, ceiling=6 / 4)


def least_gpus(fields: Fields) -> Reference:
    base = {"id": "search", "model": fields["model"], "tuning": fields["tuning"], "learning_rate": 1e-5, "steps": 10,
            "data": "none", "seq_len": fields.get("seq_len", 2048), "gradient_checkpointing": True,
            "precision": fields.get("precision", "bf16")}  # fmt: skip
    found = cheapest(base, shape_of(fields["model"]), gpu(fields["gpu"]))
    return Reference(found.plan.world_size if found.plan else math.inf)


def checkpoint(fields: Fields) -> Reference:
    shape, element = shape_of(fields["model"]), FULL if fields.get("precision") == "fp32" else HALF
    return Reference(shape.parameters * element)


def gpu_memory(fields: Fields) -> Reference:
    return Reference(gpu(fields["gpu"]).memory_gb * 1e9)


def largest_matrix(fields: Fields) -> Reference:
    return Reference(HALF * max(a * b for a, b in shape_of(fields["model"]).linears.values()))


def fixed(value: float) -> Callable[[Fields], Reference]:
    return lambda fields: Reference(value)


def kv_cache(fields: Fields) -> Reference:
    shape = shape_of(fields["model"])
    return Reference(2.0 * HALF * shape.layers * shape.kv_dim * fields["micro_batch"] * fields["seq_len"])
