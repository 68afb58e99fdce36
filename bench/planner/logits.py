"""Logits and loss: bytes per position, by loss kernel, on the last pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

from bench.planner.job import FULL, Job


@dataclass(frozen=True)
class LossKernel:
    """Bytes per vocabulary entry and position, for a half-precision model; fp32 logits need no cast."""

    forward: float
    backward: float
    chunk: int | None
    """Positions whose logits exist at a time; None for all."""
    derivation: str


KERNELS = {
    "upcast": LossKernel(
        10, 12, None,
        "forward: half logits 2, fp32 copy 4, log-softmax 4; backward: log-softmax 4, gradient of the "
        "pick 4, gradient of the log-softmax 4",
    ),
    "transformers-shift": LossKernel(
        14, 12, None,
        "transformers 4.46 to 4.4x: half logits 2 held by the caller, fp32 copy 4, contiguous shifted copy "
        "4, log-softmax 4",
    ),
    "triton-shift": LossKernel(
        10, 10, None, "half logits 2, fp32 copy 4, contiguous shifted copy 4, gradient written in place"
    ),
    "triton": LossKernel(
        8, 8, None, "half logits 2, fp32 copy 4 whose gradient is written in place, half gradient 2"
    ),
    "half-chunks": LossKernel(
        4, 6, None, "LitGPT: logits and log-softmax stay in half precision, both kept for all chunks; one gradient"
    ),
    "chunked": LossKernel(10, 12, 1024, "the upcast on 1024 positions at a time, recomputed in the backward pass"),
    "fused": LossKernel(
        0, 0, 1024,
        "head and loss fused: the gradient of the hidden states is made in the forward pass and logits "
        "exist for a chunk of positions only (Liger, arXiv:2410.10989)",
    ),
}  # fmt: skip


def logits_bytes(job: Job) -> dict[str, float]:
    """Bytes on one rank at the loss: forward, backward, and while the head's own gradient is made.

    Under tensor parallelism every rank gathers the logits whole, and cuts its part out of their gradient.
    """
    kernel, vocab = KERNELS[job.loss], job.shape.vocab
    e, tokens = job.precision.compute, job.tokens
    shown = min(tokens, kernel.chunk) if kernel.chunk else tokens
    if job.loss == "fused":
        return {"forward": shown * vocab * (e + 2 * FULL), "backward": 0.0, "head": 0.0}
    forward = kernel.forward
    if e == FULL:
        # The cast is free; leaving out the last position of several samples makes the one copy.
        forward = 3 * FULL if job.micro_batch > 1 else 2 * FULL
    # The last position of each sample predicts nothing and is cut before the fp32 copy.
    cut = min(job.micro_batch, shown - 1) if job.loss == "upcast" else 0
    return {
        "forward": vocab * (shown * forward - cut * (forward - e)),
        "backward": vocab * (shown - cut) * kernel.backward,
        # The gradient that leaves out the last position is put back into a whole one.
        "head": shown * vocab * e * (2 + (1 / job.tp if job.tp > 1 else 0)),
    }
