"""Which layouts exist, and in plain words why the others do not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from bench.spec.case import Case
from bench.spec.paths import local_path

SPLIT_FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types whose layers the tensor and pipeline layouts know how to split."""


def why_unsupported(case: Case, world_size: int, config: Mapping[str, Any] | None = None) -> str | None:
    """Say why a case cannot run on this many ranks, before anything starts.

    A model in a local folder is looked at too; for one of the hub the worker does it.

    Args:
        case: the case.
        world_size: ranks over all nodes.
        config: what is known of a model that is in no local folder, in the words of its config.json.

    Returns:
        The reason in one sentence, or None where the layout is sound.
    """
    try:
        case.accumulation_steps(world_size)
    except ValueError as error:
        return str(error)
    if case.offload_optimizer == "cpu" and case.zero_stage == 0:
        return "offload_optimizer cpu needs zero_stage 1, 2 or 3: ZeRO-0 keeps its optimizer whole on the device"
    if case.fill and case.seq_len < 2:
        return f"fill with seq_len {case.seq_len}: at least 2 tokens are needed"
    return _why_axes_unsupported(case) or why_model_unsupported(case, _local_config(case) or config)


def _why_axes_unsupported(case: Case) -> str | None:
    """What no engine of ours can do whatever the model."""
    split = {f"{axis}_size {size}": size for axis, size in case.model_axes.items() if size > 1}
    if not split:
        return None
    named = " and ".join(split)
    checks = [
        (case.engine == "ddp", f"{named} needs engine deepspeed: DDP holds the whole model on every rank"),
        (case.zero_stage == 0,
         f"{named} with zero_stage 0: DeepSpeed computes a wrong gradient norm there; take zero_stage 1"),
        (case.pp_size > 1 and case.zero_stage == 2,
         f"pp_size {case.pp_size} with zero_stage 2: DeepSpeed's pipeline engine refuses it, since stages would "
         "reduce gradients in every micro-batch; accepted: 1, or 3 (experimental)"),
        (case.offload_optimizer != "none",
         f"offload_optimizer {case.offload_optimizer} with {named}: this release offloads data-parallel layouts only"),
    ]  # fmt: skip
    checks += [
        (case.sp_size > 1 and case.tp_size * case.pp_size > 1,
         f"{named}: sequence parallelism is combined with data parallelism only"),
        (case.sp_size > 1 and case.attention == "eager",
         f"attention eager with sp_size {case.sp_size}: DeepSpeed's Ulysses drops masks; take sdpa"),
        (case.pp_size > 1 and case.precision == "fp16",
         f"precision fp16 with pp_size {case.pp_size}: the loss scaler is untried over stages; take bf16 or fp32"),
    ]  # fmt: skip
    return next((sentence for wrong, sentence in checks if wrong), None)


def why_model_unsupported(case: Case, config: Mapping[str, Any] | None) -> str | None:
    """Say why a model does not fit a layout.

    Args:
        case: the case.
        config: the model's config.json; None where it is not known yet.
    """
    if config is None or all(size == 1 for size in case.model_axes.values()):
        return None
    fields = {**config, **case.model_overrides}
    heads, layers = fields["num_attention_heads"], fields["num_hidden_layers"]
    kv_heads, family = fields.get("num_key_value_heads") or heads, fields.get("model_type")
    windowed = fields.get("use_sliding_window", fields.get("sliding_window") is not None)
    sliding = windowed or "sliding_attention" in (fields.get("layer_types") or ())
    tp, pp, sp = case.tp_size, case.pp_size, case.sp_size
    tensor = f"accepted: {_divisors(math.gcd(heads, kv_heads))}"
    checks = [
        (tp * pp > 1 and family not in SPLIT_FAMILIES,
         f"model_type {family!r} with tp_size {tp}, pp_size {pp}: layers of {', '.join(SPLIT_FAMILIES)} can be split"),
        (heads % tp, f"tp_size {tp} does not divide the model's {heads} attention heads; {tensor}"),
        (kv_heads % tp,
         f"tp_size {tp} does not divide the model's {kv_heads} key-value heads: each rank holds whole heads; {tensor}"),
        (heads % sp,
         f"sp_size {sp} does not divide the model's {heads} attention heads; accepted: {_divisors(heads)}"),
        (kv_heads % sp and sp % kv_heads,
         f"sp_size {sp} and the model's {kv_heads} key-value heads: one must divide the other"),
        (sp > 1 and sliding, "sliding-window attention with sequence parallelism: it drops masks"),
        (pp > layers,
         f"pp_size {pp} exceeds the model's {layers} layers: every stage needs one; accepted: 1 to {layers}"),
        (pp > 1 and case.zero_stage == 3 and case.tuning == "full" and fields.get("tie_word_embeddings"),
         f"pp_size {pp} with zero_stage 3 and tied embeddings: the gradients of the first and last stage's copies "
         "cannot be added once ZeRO-3 has partitioned them; take zero_stage 1, or LoRA"),
        (pp > 1 and case.attention == "eager",
         "attention eager with pipeline stages: stages pass no mask, and the eager kernel is not causal without one"),
        (pp > 1 and sliding, "sliding-window attention with pipeline stages: stages pass no mask"),
    ]  # fmt: skip
    return next((sentence for wrong, sentence in checks if wrong), None)


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def _local_config(case: Case) -> dict[str, Any] | None:
    """The config of a model in a local folder; what is wrong with the folder is said elsewhere."""
    folder = local_path(case.model)
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
    except (OSError, ValueError):
        return None


def remarks(case: Case, world_size: int) -> list[str]:
    """Caveats that a reader of this case's numbers must know.

    Args:
        case: the case.
        world_size: ranks over all nodes.
    """
    notes = []
    if case.zero_stage == 0 and case.precision != "fp32":
        notes.append(
            "DeepSpeed's ZeRO-0 path in half precision starts Adam one step ahead, so its losses "
            "drift from the other engines; take ddp or ZeRO-1 as the arm without sharding."
        )
    if case.zero_stage and case.dp_size(world_size) * case.sp_size == 1:
        notes.append(f"One data-parallel rank: ZeRO-{case.zero_stage} shards nothing here.")
    if case.tp_size > 1:
        notes.append(
            "Tensor parallel: embedding and head are split by vocabulary; norms, and one side of each adapter, are "
            "whole on every rank. Logits are gathered, so that each rank holds them whole."
        )
    if case.pp_size > 1 and case.zero_stage == 3:
        notes.append(
            "Experimental: DeepSpeed's pipeline engine refuses ZeRO-3, so an ordinary engine per stage runs under "
            "this suite's own 1F1B schedule, on private behaviour of DeepSpeed 0.19.8."
        )
    if case.weights == "random":
        notes.append("Random weights: speed and memory only, loss and accuracy mean nothing.")
    return notes
