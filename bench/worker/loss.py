"""The loss of every engine: summed token loss, so that ranks and micro-batches add up exactly."""

from __future__ import annotations

from collections.abc import Sequence
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
    return aligned_loss_sum(logits[:, :-1], labels[:, 1:])


def aligned_loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As `token_loss_sum`, where position t of the targets belongs to position t of the logits."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")


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
    return scores_of(batch.rows, aligned_sums(logits[:, :-1], batch.labels[:, 1:]))


def aligned_sums(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Loss, counted and correct tokens of each sample, fp64 [3, samples]; targets aligned with the logits."""
    predicted = logits.float()
    losses = F.cross_entropy(predicted.transpose(1, 2), targets, ignore_index=IGNORE, reduction="none")
    counted = targets != IGNORE
    correct = (predicted.argmax(-1) == targets) & counted
    return torch.stack([t.double().sum(1) for t in (losses, counted, correct)])


def scores_of(rows: Sequence[int], sums: torch.Tensor) -> list[Score]:
    """Scores from the sums of `aligned_sums`."""
    losses, counted, correct = sums.tolist()
    return [Score(*one) for one in zip(rows, losses, map(int, counted), map(int, correct), strict=True)]
