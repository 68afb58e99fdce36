"""The loss of every engine: summed token loss, so that ranks and micro-batches add up exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from bench.worker.batches import Batch
from bench.worker.data import IGNORE


def token_loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of the cross entropies of the labelled tokens, in fp32 (transformers' default upcast).

    Args:
        logits: [samples, positions, vocabulary].
        labels: [samples, positions]; IGNORE does not count. Position t predicts label t + 1.

    Returns:
        A scalar in fp32.
    """
    return F.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction="sum"
    )


@dataclass(frozen=True)
class Score:
    """One held-out sample, teacher-forced."""

    row: int
    loss_sum: float
    loss_tokens: int
    correct_tokens: int

    @property
    def exact(self) -> bool:
        """The whole answer is the argmax, which equals what greedy decoding would write."""
        return self.correct_tokens == self.loss_tokens


def score(logits: torch.Tensor, batch: Batch) -> list[Score]:
    """Score each sample of a batch by itself.

    Args:
        logits: [samples, positions, vocabulary].
        batch: the batch they come from.
    """
    predicted, labels = logits[:, :-1].float(), batch.labels[:, 1:]
    losses = F.cross_entropy(predicted.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
    counted = labels != IGNORE
    correct = (predicted.argmax(-1) == labels) & counted
    sums = [t.sum(1).tolist() for t in (losses.double(), counted, correct)]
    return [Score(row, *values) for row, *values in zip(batch.rows, *sums, strict=True)]
