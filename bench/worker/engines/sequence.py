"""Ulysses sequence parallelism: every rank runs the whole model over its piece of each sample.

DeepSpeed's attention exchanges pieces of all heads for all positions of some heads, and back. ZeRO shards
over data and sequence axes together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from torch.nn import functional as F

from bench.worker.batches import Batch
from bench.worker.data import IGNORE
from bench.worker.engines.protocol import StepResult
from bench.worker.engines.zero import ZeroEngine
from bench.worker.loss import Score, aligned_loss_sum, aligned_sums, scores_of
from bench.worker.parallel.build import Built


class SequenceEngine(ZeroEngine):
    """ZeRO over pieces of sequences."""

    def initialize(self, built: Built, optimizer: torch.optim.Optimizer, ds_config: dict[str, Any]) -> Any:
        """See `ZeroEngine.initialize`."""
        groups = UlyssesSPAttentionHF.register_with_transformers(
            built.model, self.case.attention, self.case.sp_size, self.case.micro_batch_size, seq_length_is_variable=True
        )
        self.group = groups.get_sequence_parallel_group()
        engine, *_ = deepspeed.initialize(model=built.model, optimizer=optimizer, config=ds_config, mpu=groups)
        return engine

    @property
    def averaged_over(self) -> int:
        """See `ZeroEngine.averaged_over`. Stage 3 divides by all ranks, 1 and 2 by data-parallel ones."""
        return self.dp_size * (self.mesh.sizes["sp"] if self.case.zero_stage == 3 else 1)

    def train_batch(self, batches: Iterator[Batch], global_tokens: int, learning_rate: float) -> StepResult:
        """See `Engine.train_batch`."""
        result = super().train_batch(batches, global_tokens, learning_rate)
        dist.all_reduce(result.loss_sum, group=self.group)
        return result

    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """See `ZeroEngine.loss_sum`: of this rank's piece."""
        return aligned_loss_sum(self.forward(batch.input_ids), self.piece(targets(batch.labels), IGNORE))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits of this rank's piece."""
        # Positions go on through the padding: falling ones would look like a new sample.
        positions = torch.arange(self._padded(input_ids), device=input_ids.device).expand(len(input_ids), -1)
        pieces = {"input_ids": self.piece(input_ids, 0), "position_ids": self.piece(positions, 0).contiguous()}
        return self.engine(**pieces, use_cache=False).logits

    def _padded(self, tensor: torch.Tensor) -> int:
        """Length of the samples after padding to a multiple of the ranks."""
        size = self.mesh.sizes["sp"]
        return -(-tensor.shape[1] // size) * size

    def piece(self, tensor: torch.Tensor, fill: int) -> torch.Tensor:
        """This rank's positions of [samples, positions], padded so that all ranks have as many."""
        padded = F.pad(tensor, (0, self._padded(tensor) - tensor.shape[1]), value=fill)
        return padded.chunk(self.mesh.sizes["sp"], 1)[self.mesh.coordinates["sp"]]

    @torch.no_grad()
    def score(self, batch: Batch) -> list[Score]:
        """See `Engine.score`. The attention wants micro-batches of the size it was made for."""
        self.model.eval()
        size = self.case.micro_batch_size
        sums = [self._sums(batch, start, size) for start in range(0, len(batch.rows), size)]
        self.model.train()
        total = torch.cat(sums, 1)[:, : len(batch.rows)].contiguous()
        dist.all_reduce(total, group=self.group)
        return scores_of(batch.rows, total) if self.mesh.reports else []

    def _sums(self, batch: Batch, start: int, size: int) -> torch.Tensor:
        """Sums of some samples of a batch, filled up with its last ones to a micro-batch."""
        rows = torch.arange(start, start + size, device=batch.input_ids.device).clamp(max=len(batch.rows) - 1)
        logits = self.forward(batch.input_ids[rows])
        return aligned_sums(logits, self.piece(targets(batch.labels[rows]), IGNORE))


def targets(labels: torch.Tensor) -> torch.Tensor:
    """What each position predicts: the label of the next one. Shifted before cutting, so that no pair is lost."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORE)
