"""Which kinds of claims there are: what each needs to be told, what it may leave open, and its formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.planner import claim_formulas as formulas
from bench.planner.claim_formulas import Fields, Reference
from bench.spec.hardware import gpu
from bench.spec.models import shape_of

EXACT, BYTES, ESTIMATE = 0.01, 0.05, 0.15
"""Relative tolerance of counts, of bytes, and of shares and rates."""


@dataclass(frozen=True)
class Quantity:
    """How a kind of claim is worked out."""

    compute: Callable[[Fields], Reference]
    needs: tuple[str, ...] = ()
    """Fields without which nothing can be said."""
    open: tuple[str, ...] = ()
    """Fields that change the answer; where they are left open, every alternative is tried."""
    tolerance: float = BYTES
    formula: str = ""
    """In symbols, for the report."""


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "gradient_checkpointing": ("yes", "no"),
    "micro_batch": (1, 2, 4, 8),
    "attention": ("flash", "eager"),
    "precision": ("bf16", "fp32"),
    "masters": ("yes", "no"),
    "zero_stage": (0, 3),
    "seq_len": (512, 1024, 2048, 4096),
    "target_modules": ("q_proj v_proj", "q_proj k_proj v_proj o_proj", "all-linear"),
    "optimizer": ("adamw", "adamw-bf16"),
}


_RUN = ("model", "tuning")
_PLACED = ("gradient_checkpointing", "micro_batch", "zero_stage")
QUANTITIES: dict[str, Quantity] = {
    "parameters": Quantity(lambda f: Reference(shape_of(f["model"]).parameters), ("model",), (), EXACT, "N"),
    "dimension": Quantity(
        lambda f: Reference(getattr(shape_of(f["model"]), f["aspect"])), ("model", "aspect"), (), EXACT, "config.json"
    ),
    "trainable_parameters": Quantity(
        lambda f: Reference(shape_of(f["model"]).lora_parameters(f["lora_rank"], tuple(f["target_modules"].split()))),
        ("model", "lora_rank"),
        ("target_modules",),
        EXACT,
        "Σ r (in + out)",
    ),
    "weights": Quantity(formulas.component("weights"), ("model",), ("precision",), BYTES, "N × bytes"),
    "gradients": Quantity(formulas.component("gradients"), _RUN, ("precision",), BYTES, "N_trained × bytes"),
    "optimizer_state": Quantity(formulas.component("optimizer_state"), _RUN, (), BYTES, "N_trained × moments"),
    "states": Quantity(formulas.all_states, _RUN, (), BYTES, "N × (weights + gradients + masters + moments)"),
    "peak_memory": Quantity(
        formulas.peak,
        _RUN,
        (*_PLACED, "masters", "optimizer"),
        BYTES,
        "states + activations + logits, peak over phases",
    ),
    "activations": Quantity(
        formulas.activations,
        (*_RUN, "seq_len"),
        ("gradient_checkpointing", "micro_batch", "target_modules"),
        BYTES,
        "L × tokens × bytes per token",
    ),
    "checkpointing_saving": Quantity(formulas.checkpointing_saving, (*_RUN, "seq_len"), (), ESTIMATE, "1 − kept / all"),
    "checkpointing_slowdown": Quantity(
        formulas.checkpointing_slowdown, _RUN, (), ESTIMATE, "1 − rate with / rate without"
    ),
    "recompute_share": Quantity(formulas.recompute_share, _RUN, (), ESTIMATE, "hardware / model FLOPs − 1"),
    "activation_share": Quantity(
        formulas.activation_share,
        _RUN,
        ("gradient_checkpointing", "seq_len"),
        ESTIMATE,
        "(activations + logits) / peak",
    ),
    "activation_growth": Quantity(
        formulas.growth(formulas.activations), _RUN, ("attention",), EXACT, "activations(2s) / activations(s)"
    ),
    "kv_cache": Quantity(formulas.fixed(0.0), (), (), BYTES, "0: training keeps no cache"),
    "kv_cache_growth": Quantity(
        formulas.growth(formulas.kv_cache), ("model",), (), EXACT, "2·L·kv_dim·b·s·bytes is linear in s"
    ),
    "peak_difference": Quantity(formulas.peak_difference, _RUN, (), BYTES, "peak − peak"),
    "rank_cost": Quantity(formulas.rank_cost, _RUN, ("target_modules",), ESTIMATE, "peak(r) / peak(r′) − 1"),
    "adapter_module_states": Quantity(
        formulas.module_saving, ("model", "lora_rank"), (), BYTES, "Σ r (in + out) × 16 bytes"
    ),
    "adapter_bytes_per_layer": Quantity(
        formulas.adapter_bytes(True), ("model", "lora_rank"), ("target_modules",), BYTES, "Σ r (in + out) × bytes"
    ),
    "adapter_bytes": Quantity(
        formulas.adapter_bytes(False), ("model", "lora_rank"), ("target_modules",), BYTES, "L Σ r (in + out) × bytes"
    ),
    "adapters_and_gradients_per_layer": Quantity(
        formulas.layer_adapters_and_gradients,
        ("model", "lora_rank"),
        ("target_modules",),
        BYTES,
        "2 Σ r (in + out) × bytes",
    ),
    "delta_weight": Quantity(formulas.fixed(0.0), (), (), BYTES, "0: x → A → B, the product B·A is never formed"),
    "dequantised_temporary": Quantity(formulas.largest_matrix, ("model",), (), BYTES, "one matrix at a time"),
    "knob_range": Quantity(formulas.knob_range, _RUN, (), ESTIMATE, "1 − least / most peak"),
    "attention_saving": Quantity(
        formulas.attention_saving,
        (*_RUN, "micro_batch", "seq_len"),
        ("gradient_checkpointing",),
        ESTIMATE,
        "1 − flash / eager",
    ),
    "single_gpu_sharding_overhead": Quantity(formulas.fixed(0.0), (), (), ESTIMATE, "0: one rank shards nothing"),
    "ddp_rank_imbalance": Quantity(formulas.fixed(0.0), (), (), BYTES, "0: every rank holds the same"),
    "lora_ratio": Quantity(formulas.lora_ratio, ("model",), ("zero_stage",), ESTIMATE, "LoRA peak / full peak"),
    "lora_saving": Quantity(
        lambda f: Reference(100 - formulas.lora_ratio(f).value),
        ("model",),
        ("zero_stage",),
        ESTIMATE,
        "1 − LoRA / full",
    ),
    "samples_per_s": Quantity(
        formulas.speed, (*_RUN, "gpu", "gpus"), ("gradient_checkpointing",), ESTIMATE, "roofline"
    ),
    "speed_ratio": Quantity(
        formulas.speed_ratio, ("model",), ("gradient_checkpointing",), ESTIMATE, "LoRA rate / full rate"
    ),
    "least_gpus": Quantity(formulas.least_gpus, (*_RUN, "gpu"), (), EXACT, "search over layouts"),
    "checkpoint": Quantity(formulas.checkpoint, ("model",), ("precision",), BYTES, "N × bytes"),
    "gpu_memory": Quantity(formulas.gpu_memory, ("gpu",), (), EXACT, "catalogue"),
    "gpu_has_bf16": Quantity(lambda f: Reference(float(gpu(f["gpu"]).bf16)), ("gpu",), (), EXACT, "catalogue"),
    "zero_shard_ranks": Quantity(
        lambda f: Reference(f["gpus"] / (f["tp"] * f["pp"]), floor=None, ceiling=f["gpus"] / (f["tp"] * f["pp"])),
        ("gpus", "tp", "pp"),
        (),
        EXACT,
        "DP = GPUs / (TP × PP)",
    ),
}
"""Kinds of claims; `arithmetic`, `measurement` and `statement` have no formula; see `bench.planner.verdicts`."""


def variants(quantity: Quantity, fields: Fields) -> list[Fields]:
    """The alternatives of the fields that a claim leaves open; each dict holds only what was added."""
    found: list[Fields] = [{}]
    for name in quantity.open:
        if name not in fields:
            found = [{**v, name: choice} for v in found for choice in ALTERNATIVES[name]]
    return found
