"""From samples to the micro-batches of one data-parallel rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from bench.spec.case import Case
from bench.worker.data import IGNORE, Sample


@dataclass(frozen=True)
class Batch:
    """One micro-batch."""

    input_ids: torch.Tensor
    """[samples, positions], int64; padding on the right."""
    labels: torch.Tensor
    """Same shape; IGNORE where the token does not count in the loss."""
    rows: tuple[int, ...]
    """Row number in the source of each sample."""
    tokens: int
    """Non-padding positions."""
    loss_tokens: int

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; the copy overlaps with work where the memory is pinned."""
        move = {"device": device, "non_blocking": True}
        return Batch(self.input_ids.to(**move), self.labels.to(**move), self.rows, self.tokens, self.loss_tokens)

    def pin_memory(self) -> Batch:
        """Called by the loader when pinning is on."""
        pinned = self.input_ids.pin_memory(), self.labels.pin_memory()
        return Batch(*pinned, self.rows, self.tokens, self.loss_tokens)


class Collate:
    """Pads samples to the longest of them (a class, so that loader workers can receive it).

    Right padding needs no attention mask: under a causal mask no real position sees a later one,
    and padded positions have no label.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples to [samples, longest]."""
        longest = max(len(sample.tokens) for sample in samples)
        ids = torch.full((len(samples), longest), self.pad_token_id)
        labels = torch.full((len(samples), longest), IGNORE)
        for i, sample in enumerate(samples):
            ids[i, : len(sample.tokens)] = torch.tensor(sample.tokens)
            labels[i, : len(sample.tokens)] = torch.tensor(sample.labels)
        return Batch(
            ids, labels, tuple(sample.row for sample in samples),
            tokens=sum(len(sample.tokens) for sample in samples),
            loss_tokens=sum(sample.loss_tokens for sample in samples),
        )  # fmt: skip


def micro_batch_indices(case: Case, dp_rank: int, dp_size: int) -> list[list[int]]:
    """Positions in the global sample order of each micro-batch of one data-parallel rank.

    Global batch b holds the positions b·G … (b+1)·G − 1 whatever the layout; micro-step a of rank r takes
    `micro_batch_size` of them from (a·dp + r)·micro on.

    Args:
        case: the case.
        dp_rank: this rank's coordinate on the data-parallel axis.
        dp_size: size of that axis.
    """
    micro, per_step = case.micro_batch_size, case.global_batch_size
    accumulation = per_step // (micro * dp_size)
    return [
        list(range(start, start + micro))
        for step in range(case.steps)
        for a in range(accumulation)
        for start in [step * per_step + (a * dp_size + dp_rank) * micro]
    ]


def global_loss_tokens(case: Case, train: Sequence[Sample]) -> list[int]:
    """Loss tokens of each global batch: known to every rank without asking the others."""
    size = case.global_batch_size
    return [sum(s.loss_tokens for s in train[i : i + size]) for i in range(0, case.steps * size, size)]


def train_loader(case: Case, train: list[Sample], pad: int, dp_rank: int, dp_size: int) -> DataLoader:
    """The micro-batches of one rank, in order."""
    workers = {"num_workers": case.loader_workers}
    if case.loader_workers:
        workers |= {"prefetch_factor": case.prefetch, "persistent_workers": False}
    return DataLoader(
        train,
        batch_sampler=micro_batch_indices(case, dp_rank, dp_size),
        collate_fn=Collate(pad),
        pin_memory=case.pin_memory and torch.cuda.is_available(),
        **workers,
    )


class Feed:
    """Iterates micro-batches on the device, counting what was fed and how long it was waited for."""

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self.reset()

    def reset(self) -> None:
        """Start the counts of a new step."""
        self.wait_s = 0.0
        self.samples = self.tokens = self.padded_tokens = self.loss_tokens = 0

    def __next__(self) -> Batch:
        start = time.perf_counter()
        batch = next(self._batches).to(self._device)
        self.wait_s += time.perf_counter() - start
        self.samples += len(batch.rows)
        self.tokens += batch.tokens
        self.padded_tokens += batch.input_ids.numel()
        self.loss_tokens += batch.loss_tokens
        return batch

    def __iter__(self) -> Feed:
        return self
