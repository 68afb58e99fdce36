"""Which parallel layouts a plan calls possible: those that the worker runs."""

from __future__ import annotations

from bench.spec.case import Case
from bench.spec.layout import why_unsupported
from bench.spec.models import ModelShape


def why_infeasible(case: Case, world_size: int, shape: ModelShape) -> str | None:
    """Say why this layout of this model cannot run, by the rule that the run itself goes by.

    Args:
        case: the case.
        world_size: ranks over all nodes.
        shape: its model.

    Returns:
        One sentence that names the field and what is accepted, or None.
    """
    if world_size < 1:
        return f"world size {world_size}: at least one GPU is needed"
    return why_unsupported(case, world_size, shape.config)


def is_extrapolated(case: Case) -> str | None:
    """Say which part of a layout no measurement backs yet, or None."""
    unmeasured = [f"{axis.upper()}{size}" for axis, size in case.model_axes.items() if size > 1]
    unmeasured += ["offload"] if case.offload_optimizer == "cpu" else []
    return f"{' × '.join(unmeasured)}: nobody's measurement backs this layout" if unmeasured else None
