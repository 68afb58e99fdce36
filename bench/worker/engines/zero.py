"""A DeepSpeed engine with ZeRO 0 to 3. What is private to DeepSpeed 0.19 is touched in this file alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from bench.records.memory import Shards
from bench.spec.case import Case
from bench.worker.batches import Batch
from bench.worker.device import Device
from bench.worker.engines.protocol import Engine, StepResult, optimizer_shards
from bench.worker.loss import token_loss_sum
from bench.worker.model import count
from bench.worker.optimizer import build_optimizer, parameter_groups
from bench.worker.parallel.build import Built
from bench.worker.parallel.mesh import Mesh

# Attributes of DeepSpeed's ZeRO optimizers by what they hold; the first match counts.
_ROLES = (
    ("gradients", re.compile(r"averaged_gradients|grad_partitions|gradients_flat|gradient_dict|fp32_groups_gradient")),
    ("buckets", re.compile(r"ipg|bucket|reduce_buffer|extra_large")),
    ("master_weights", re.compile(r"fp32")),
    ("weights", re.compile(r"bit16|bf16|fp16|params")),
)
_TAG = "resume"


class ZeroEngine(Engine):
    """`deepspeed.initialize` around the model, with our optimizer, schedule and loss scaling of micro-batches."""

    def __init__(self, case: Case, built: Built, device: Device, mesh: Mesh, ds_config: dict[str, Any]) -> None:
        super().__init__(case, built, device, mesh)
        if case.zero_stage != 3:
            built.model.to(device.torch)
        optimizer = build_optimizer(case, parameter_groups(case, built.model.named_parameters()))
        self.engine = self.initialize(built, optimizer, ds_config)
        self._clipped_norm: torch.Tensor | None = None
        if not hasattr(self.engine.optimizer, "_global_grad_norm"):
            # ZeRO-0 in fp32 clips without keeping the norm; the same call, keeping it, costs nothing.
            self.engine.clip_fp32_gradients = self._clip_keeping_norm

    def initialize(self, built: Built, optimizer: torch.optim.Optimizer, ds_config: dict[str, Any]) -> Any:
        """Make DeepSpeed's engine. The mesh's grid tells it which ranks hold the same shards."""
        engine, *_ = deepspeed.initialize(
            model=built.wrapped, optimizer=optimizer, config=ds_config, mpu=self.mesh.grid
        )
        return engine

    def _clip_keeping_norm(self) -> None:
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self._clipped_norm = nn.utils.clip_grad_norm_(trainable, self.case.max_grad_norm)

    @property
    def optimizer(self) -> Any:
        """DeepSpeed's optimizer, which wraps ours from stage 1 on."""
        return self.engine.optimizer

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer that steps this rank's share."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def train_batch(self, batches: Iterator[Batch], global_tokens: int, learning_rate: float) -> StepResult:
        """See `Engine.train_batch`. The boundary of accumulation is counted by the engine, as configured."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        total = torch.zeros((), device=self.device.torch)
        for _ in range(self.accumulation_steps):
            batch = next(batches)
            self.mark("forward")
            loss_sum = self.loss_sum(batch)
            self.mark("backward")
            self.engine.backward(loss_sum * (self.averaged_over / global_tokens), scale_wrt_gas=False)
            total += loss_sum.detach()
            self.mark("step")
            self.engine.step()
        return StepResult(total, self._grad_norm(), not self.engine.was_step_applied())

    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Summed token loss that this rank computes of a micro-batch."""
        return token_loss_sum(self.forward(batch.input_ids), batch.labels)

    @property
    def averaged_over(self) -> int:
        """What DeepSpeed divides gradients by; the loss is a sum over all ranks, so it is multiplied by that."""
        return self.dp_size

    def _grad_norm(self) -> torch.Tensor | float | None:
        norm = getattr(self.optimizer, "_global_grad_norm", self._clipped_norm)
        return None if norm is None or (not torch.is_tensor(norm) and norm < 0) else norm

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """See `Engine.forward`."""
        return self.engine(input_ids=input_ids, use_cache=False).logits

    def weights(self) -> list[torch.Tensor]:
        """Tensors that store parameters between steps on this rank."""
        return [p.ds_tensor if hasattr(p, "ds_tensor") else p for p in self.model.parameters()]

    def memory_roles(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Engine.memory_roles`. Buckets come first: gradients may be views of them."""
        yield from self._roles_of_optimizer("buckets")
        yield from (("weights", t) for t in [*self.weights(), *self.model.parameters(), *self.model.buffers()])
        yield from (("gradients", p.grad) for p in self.model.parameters() if p.grad is not None)
        for state in self.inner_optimizer.state.values():
            yield from (("optimizer_state", t) for t in state.values() if torch.is_tensor(t))
        for role, _ in _ROLES:
            yield from self._roles_of_optimizer(role)

    def _roles_of_optimizer(self, wanted: str) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in vars(self.optimizer).items():
            role = next((role for role, pattern in _ROLES if pattern.search(name)), None)
            if role == wanted:
                yield from ((role, tensor) for tensor in _tensors(value))

    def shards(self) -> Shards:
        """See `Engine.shards`. ZeRO-3 empties its optimizer's groups between steps, so masters are asked for."""
        trainable = [p.ds_tensor if hasattr(p, "ds_tensor") else p for p in self.model.parameters() if p.requires_grad]
        stepped = getattr(self.optimizer, "fp32_partitioned_groups_flat", None)
        shards = optimizer_shards(self.weights(), trainable, self.inner_optimizer, stepped)
        shards.part_elements = count(self.model.parameters())
        shards.part_trainable_elements = count(p for p in self.model.parameters() if p.requires_grad)
        return shards

    def save_native(self, folder: Path) -> None:
        """See `Engine.save_native`. A frozen base is not written again with every adapter."""
        frozen = self.case.tuning != "full"
        self.engine.save_checkpoint(str(folder), tag=_TAG, exclude_frozen_parameters=frozen)

    def load_native(self, folder: Path) -> None:
        """See `Engine.load_native`."""
        path, _ = self.engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=self.case.tuning == "full")
        if path is None:
            raise RuntimeError(f"DeepSpeed found no checkpoint in {folder}")

    def settle(self) -> None:
        """See `Engine.settle`: ZeRO-3 has already begun to gather what it expects next, and what is in
        flight can be neither exported nor saved."""
        if self.case.zero_stage == 3:
            self.engine.empty_partition_cache()

    def tracing(self, tally: Any) -> None:
        """See `Engine.tracing`: ZeRO-3's gathered parameters, and what reduces and keeps gradients in ZeRO-1 and 2."""
        if self.case.zero_stage == 3:
            coordinator = type(self.optimizer.parameter_offload.get_param_coordinator())
            tally.attribute(coordinator, "fetch_sub_module", "gathered")
        elif self.case.zero_stage in (1, 2):
            tally.attribute(type(self.optimizer), "setup_buckets", "buckets")
            tally.attribute(type(self.optimizer), "copy_grads_in_partition", "gradients")


def _tensors(value: Any, depth: int = 5) -> Iterator[torch.Tensor]:
    """Tensors inside lists, tuples, dicts and the small bucket objects of DeepSpeed."""
    if torch.is_tensor(value):
        yield value
        if value.grad is not None:
            yield value.grad
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        yield from _tensors(list(value.values()), depth)
    elif depth and type(value).__module__.startswith("deepspeed.runtime.zero") and hasattr(value, "__dict__"):
        yield from _tensors([v for k, v in vars(value).items() if k != "param_groups"], depth - 1)
