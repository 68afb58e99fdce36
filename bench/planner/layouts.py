"""Which parallel layouts exist for a model at all, whatever this release's worker runs, and why others do not."""

from __future__ import annotations

from bench.spec.case import Case
from bench.spec.models import ModelShape


def why_infeasible(case: Case, world_size: int, shape: ModelShape) -> str | None:
    """Say why no engine can run this layout of this model.

    Args:
        case: the case.
        world_size: ranks over all nodes.
        shape: its model.

    Returns:
        One sentence that names the field and what is accepted, or None.
    """
    if world_size < 1:
        return f"world size {world_size}: at least one GPU is needed"
    try:
        case.accumulation_steps(world_size)
    except ValueError as error:
        return str(error)
    checks = [*_tensor_checks(case, shape), *_other_checks(case, shape, case.dp_size(world_size))]
    return next((sentence for wrong, sentence in checks if wrong), None)


def _tensor_checks(case: Case, shape: ModelShape) -> list[tuple[object, str]]:
    tp, heads, kv_heads = case.tp_size, shape.heads, shape.kv_heads
    return [
        (heads % tp, f"tp_size {tp}: {heads} attention heads cannot be split; accepted: {_divisors(heads)}"),
        (shape.intermediate % tp, f"tp_size {tp} does not divide the MLP width {shape.intermediate}"),
        (
            tp > kv_heads and case.zero_stage == 3,
            f"tp_size {tp} exceeds the {kv_heads} KV heads, which ZeRO-3 cannot shard; accepted: 1 to {kv_heads}",
        ),
        (tp <= kv_heads and kv_heads % tp, f"tp_size {tp} does not divide the {kv_heads} KV heads"),
    ]


def _other_checks(case: Case, shape: ModelShape, dp: int) -> list[tuple[object, str]]:
    pp, sp, stage = case.pp_size, case.sp_size, case.zero_stage
    nothing = f"; and with {dp} data-parallel rank it would shard nothing" if dp == 1 else ""
    return [
        (pp > shape.layers, f"pp_size {pp}: the model has only {shape.layers} layers; accepted: 1 to {shape.layers}"),
        (
            pp > 1 and stage == 2,
            f"pp_size {pp} with zero_stage 2: DeepSpeed's pipeline engine refuses ZeRO-2 and 3; "
            f"accepted: 1{nothing}, or 3 (experimental)",
        ),
        (
            case.engine == "ddp" and case.tp_size * pp * sp > 1,
            f"engine ddp has no tp_size {case.tp_size}, pp_size {pp}, sp_size {sp}; accepted: 1",
        ),
        (
            shape.heads % sp,
            f"sp_size {sp} does not divide the {shape.heads} attention heads; accepted: {_divisors(shape.heads)}",
        ),
        (case.seq_len % sp, f"sp_size {sp} does not divide seq_len {case.seq_len}"),
        (case.offload_optimizer == "cpu" and stage == 0, "offload_optimizer cpu needs zero_stage 1, 2 or 3"),
    ]


def is_extrapolated(case: Case) -> str | None:
    """Say which part of a layout no measurement backs yet, or None."""
    unmeasured = [f"{axis.upper()}{size}" for axis, size in case.model_axes.items() if size > 1]
    unmeasured += ["offload"] if case.offload_optimizer == "cpu" else []
    return f"{' × '.join(unmeasured)}: nobody's measurement backs this layout" if unmeasured else None


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
