"""Which layouts exist, and in plain words why the others do not."""

from __future__ import annotations

from bench.spec.case import Case


def why_unsupported(case: Case, world_size: int) -> str | None:
    """Say why a case cannot run on this many ranks, before anything starts.

    Args:
        case: the case.
        world_size: ranks over all nodes.

    Returns:
        The reason in one sentence, or None where the layout is sound.
    """
    for axis, size in case.model_axes.items():
        if size > 1:
            return f"{axis}_size {size}: this release runs data-parallel layouts only"
    try:
        case.accumulation_steps(world_size)
    except ValueError as error:
        return str(error)
    if case.offload_optimizer == "cpu" and case.zero_stage == 0:
        return "offload_optimizer cpu needs zero_stage 1, 2 or 3: ZeRO-0 keeps its optimizer whole on the device"
    if case.fill and case.seq_len < 2:
        return f"fill with seq_len {case.seq_len}: at least 2 tokens are needed"
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
    if case.zero_stage and case.dp_size(world_size) == 1:
        notes.append(f"One data-parallel rank: ZeRO-{case.zero_stage} shards nothing here.")
    if case.weights == "random":
        notes.append("Random weights: speed and memory only, loss and accuracy mean nothing.")
    return notes
