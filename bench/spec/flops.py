"""Floating-point operations of training, per token. One multiply-add is two operations."""

from __future__ import annotations

from dataclasses import dataclass

from bench.spec.models import ModelShape


@dataclass(frozen=True)
class TokenFlops:
    """Operations per computed position, summed over the model."""

    model: float
    """What the method needs: forward and backward, nothing twice. MFU counts these."""
    hardware: float
    """What is executed: plus recomputation in the backward pass. HFU counts these."""


def model_flops_per_token(
    shape: ModelShape,
    seq_len: int,
    tuning: str,
    lora_rank: int | None = None,
    target_modules: tuple[str, ...] | None = None,
    gradient_checkpointing: bool = False,
    causal: bool = True,
) -> TokenFlops:
    """Count the operations of one training step per computed position.

    Matrices: 2 operations per weight forward, 2 backward for the gradient of the inputs and 2 for
    that of the weights (Kaplan et al., arXiv:2001.08361, §2.1). A frozen weight needs no gradient of its own:
    4 instead of 6; adapters need all 6. The input embedding is a look-up and costs none; the output
    head is a matrix, also where it is tied.
    Attention: scores and values take 2 × 2 × q_dim × seq_len per position forward and twice that
    backward (PaLM, arXiv:2204.02311, appendix B); a causal kernel skips half.
    Checkpointing runs each block's forward pass once more; the head lies outside of the blocks.

    Args:
        shape: the model.
        seq_len: positions of one sequence.
        tuning: `full` or `lora`.
        lora_rank: rank of the adapters.
        target_modules: adapted modules; `("all-linear",)` or names.
        gradient_checkpointing: recompute blocks in the backward pass.
        causal: count only the lower triangle of attention, which flash kernels compute.
    """
    blocks = shape.layers * shape.matrix_parameters_per_layer
    head = shape.vocab * shape.hidden
    attention = 4 * shape.layers * shape.q_dim * seq_len * (0.5 if causal else 1.0)
    adapters = 0
    if tuning == "lora":
        adapters = shape.lora_parameters(lora_rank or 8, target_modules or ("all-linear",))
    per_weight = 6 if tuning == "full" else 4
    model = per_weight * (blocks + head) + 6 * adapters + 3 * attention
    again = 2 * (blocks + adapters) + attention if gradient_checkpointing else 0
    return TokenFlops(model=float(model), hardware=float(model + again))
