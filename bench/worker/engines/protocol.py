"""What the one training loop asks of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from bench.records.memory import Shards
from bench.records.schema import PipelineTime
from bench.spec.case import Case
from bench.worker.batches import Batch
from bench.worker.device import Device
from bench.worker.loss import Score, score
from bench.worker.parallel.build import Built
from bench.worker.parallel.mesh import Mesh


@dataclass
class StepResult:
    """One optimizer step, as tensors that are read after the fence."""

    loss_sum: torch.Tensor
    """Summed token loss of this rank's micro-batches, fp32 scalar."""
    grad_norm: torch.Tensor | float | None
    """Global norm before clipping; None where the engine computes none."""
    skipped: bool
    """The loss scaler skipped the step."""


class Engine(ABC):
    """A wrapped model with its optimizer. One global batch goes in, one optimizer step comes out."""

    def __init__(self, case: Case, built: Built, device: Device, mesh: Mesh) -> None:
        self.case, self.device, self.mesh = case, device, mesh
        self.accumulation_steps = case.accumulation_steps(dist.get_world_size())
        self.model = built.model
        """The unwrapped model, or this rank's part of it: names and shapes of the parameters."""
        self.whole = built.whole
        """Every parameter of the whole model."""
        self.mark: Callable[[str], None] = lambda phase: None
        """Told forward, backward, step and steady as they begin; the memory pass listens."""

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks."""
        return self.mesh.sizes["dp"]

    @property
    def dp_rank(self) -> int:
        """This rank's coordinate on the data-parallel axis."""
        return self.mesh.coordinates["dp"]

    @abstractmethod
    def train_batch(self, batches: Iterator[Batch], global_tokens: int, learning_rate: float) -> StepResult:
        """Run `accumulation_steps` micro-batches and one optimizer step.

        Args:
            batches: this rank's micro-batches.
            global_tokens: loss tokens of the global batch; gradients are those of the summed loss over it.
            learning_rate: of this step.
        """

    @abstractmethod
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits of the wrapped model, [samples, positions, vocabulary]; anything where the mesh does not report."""

    @abstractmethod
    def memory_roles(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(category, tensor) of everything that lives between two steps."""

    @abstractmethod
    def shards(self) -> Shards:
        """What this rank really holds."""

    @abstractmethod
    def save_native(self, folder: Path) -> None:
        """Write the engine's own resume checkpoint (all ranks)."""

    @abstractmethod
    def load_native(self, folder: Path) -> None:
        """Read it back into this engine (all ranks)."""

    @torch.no_grad()
    def score(self, batch: Batch) -> list[Score]:
        """Score held-out samples in evaluation mode; empty on ranks that do not report for their replica."""
        self.model.eval()
        logits = self.forward(batch.input_ids)
        self.model.train()
        return score(logits, batch) if self.mesh.reports else []

    def settle(self) -> None:  # noqa: B027 - most engines have nothing in flight
        """Finish what is in flight once a series of evaluation passes has ended."""

    def pipeline_time(self, skip: int) -> PipelineTime | None:
        """Compute and schedule seconds over the steps after the first `skip`; None without pipeline stages."""
        return None

    def tracing(self, tally: object) -> None:  # noqa: B027 - most engines have nothing to add
        """Let a memory pass attribute tensors that the engine makes by itself."""


def optimizer_shards(
    weights: list[torch.Tensor],
    trainable: list[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    stepped: list[torch.Tensor] | None = None,
) -> Shards:
    """Count what a rank holds.

    Args:
        weights: tensors that store model parameters between steps.
        trainable: those of them that are trained.
        optimizer: the torch optimizer that steps this rank's share.
        stepped: what it steps, where its groups do not tell.
    """
    stepped = stepped or [p for group in optimizer.param_groups for p in group["params"]]
    states = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    aliased = {t.untyped_storage().data_ptr() for t in weights}
    masters = [p for p in stepped if p.untyped_storage().data_ptr() not in aliased]
    return Shards(
        weight_elements=sum(t.numel() for t in weights),
        trainable_elements=sum(t.numel() for t in trainable),
        optimizer_elements=sum(p.numel() for p in stepped),
        optimizer_state_bytes=sum(t.nbytes for t in states + masters),
    )
