"""torch DistributedDataParallel: every rank holds everything, gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.records.memory import Shards
from bench.spec.case import Case
from bench.worker.batches import Batch
from bench.worker.device import Device
from bench.worker.engines.protocol import Engine, StepResult, optimizer_shards
from bench.worker.loss import token_loss_sum
from bench.worker.optimizer import MasterWeights, build_optimizer, parameter_groups
from bench.worker.parallel.build import Built
from bench.worker.parallel.mesh import Mesh


class DdpEngine(Engine):
    """DDP with gradients as views of its buckets, and fp32 master weights in half precision."""

    def __init__(self, case: Case, built: Built, device: Device, mesh: Mesh) -> None:
        super().__init__(case, built, device, mesh)
        model = built.model.to(device.torch)
        groups = parameter_groups(case, model.named_parameters())
        self.trainable = [p for group in groups for p in group["params"]]
        self.masters = MasterWeights(case, groups) if case.precision != "fp32" else None
        self.optimizer = self.masters.optimizer if self.masters else build_optimizer(case, groups)
        self.scaler = torch.amp.GradScaler(device.torch.type, enabled=case.precision == "fp16")
        self.ddp = DistributedDataParallel(
            model,
            device_ids=[device.torch] if device.is_cuda else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )

    def train_batch(self, batches: Iterator[Batch], global_tokens: int, learning_rate: float) -> StepResult:
        """See `Engine.train_batch`."""
        # In place: gradients stay views of DDP's buckets. Setting them to None would make accumulation
        # hold a second copy until the buckets are filled.
        present = [p.grad for p in self.trainable if p.grad is not None]
        if present:
            torch._foreach_zero_(present)
        total = torch.zeros((), device=self.device.torch)
        for micro in range(self.accumulation_steps):
            last = micro == self.accumulation_steps - 1
            batch = next(batches)
            with nullcontext() if last else self.ddp.no_sync():
                self.mark("forward")
                loss_sum = token_loss_sum(self.forward(batch.input_ids), batch.labels)
                self.mark("backward")
                # DDP averages over ranks; the loss is a sum over all of them.
                self.scaler.scale(loss_sum * (self.dp_size / global_tokens)).backward()
            total += loss_sum.detach()
        self.mark("step")
        grad_norm, skipped = self._step(learning_rate)
        return StepResult(total, grad_norm, skipped)

    def _step(self, learning_rate: float) -> tuple[torch.Tensor, bool]:
        if self.masters:
            self.masters.take_gradients()
        self.scaler.unscale_(self.optimizer)
        stepped = self.masters.masters if self.masters else self.trainable
        limit = self.case.max_grad_norm or float("inf")
        grad_norm = nn.utils.clip_grad_norm_(stepped, limit)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.masters:
            self.masters.give_weights()
        return grad_norm, self.scaler.is_enabled() and self.scaler.get_scale() < scale

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """See `Engine.forward`. Evaluation bypasses DDP, which would prepare for a backward pass."""
        model = self.ddp if torch.is_grad_enabled() else self.model
        return model(input_ids=input_ids, use_cache=False).logits

    def memory_roles(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Engine.memory_roles`."""
        yield from (("weights", t) for t in [*self.model.parameters(), *self.model.buffers()])
        # Views of DDP's buckets, which live on while `grad` is None.
        yield from (("gradients", p.grad) for p in self.trainable if p.grad is not None)
        if self.masters:
            yield from (("master_weights", p) for p in self.masters.masters)
        for state in self.optimizer.state.values():
            yield from (("optimizer_state", t) for t in state.values() if torch.is_tensor(t))

    def shards(self) -> Shards:
        """See `Engine.shards`."""
        return optimizer_shards(list(self.model.parameters()), self.trainable, self.optimizer)

    def save_native(self, folder: Path) -> None:
        """Rank 0 writes weights and optimizer: every rank holds the same."""
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
            torch.save(trained, folder / "weights.pt")
            torch.save(self._optimizer_state(), folder / "optimizer.pt")
        dist.barrier()

    def _optimizer_state(self) -> dict:
        masters = self.masters.masters if self.masters else []
        return {"optimizer": self.optimizer.state_dict(), "masters": masters, "scaler": self.scaler.state_dict()}

    def load_native(self, folder: Path) -> None:
        """See `Engine.load_native`."""
        where = {"map_location": self.device.torch, "weights_only": True}
        weights = torch.load(folder / "weights.pt", **where)
        state = torch.load(folder / "optimizer.pt", **where)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(weights[name])
            for master, saved in zip(self.masters.masters if self.masters else [], state["masters"], strict=True):
                master.copy_(saved)
