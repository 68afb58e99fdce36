"""DeepSpeed's pipeline engine with ZeRO-1: its schedule, our stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import MethodType
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule
from torch import nn

from bench.records.schema import PipelineTime
from bench.worker.batches import Batch
from bench.worker.engines.protocol import StepResult
from bench.worker.engines.zero import ZeroEngine
from bench.worker.loss import token_loss_sum
from bench.worker.parallel.build import Built
from bench.worker.parallel.clock import ComputeClock
from bench.worker.parallel.mesh import Mesh, topology
from bench.worker.parallel.relay import Relay

_PASSES = {schedule.ForwardPass: "forward", schedule.BackwardPass: "backward"}
_ENDS = (schedule.ReduceTiedGrads, schedule.ReduceGrads, schedule.OptimizerStep)


class _OneLayerPerStage(PipelineModule):
    """DeepSpeed's view of the pipeline: each stage is one layer, so that its bounds are ours."""

    def __init__(self, stage: nn.Module, mesh: Mesh, loss: Any) -> None:
        layers: list[Any] = [LayerSpec(nn.Identity) for _ in range(mesh.sizes["pp"])]
        layers[mesh.coordinates["pp"]] = stage
        # Gradients of embedding and tied head are added over the stages that hold them.
        self._tied: list[tuple[nn.Parameter, Any]] = []
        super().__init__(
            layers, topology=topology(mesh.sizes), loss_fn=loss, partition_method="uniform", dynamic_shape=True
        )
        group = _ends_group(mesh)
        if stage.tied_copy is not None:
            self._tied.append((stage.tied_copy, group))
            stage.tied_copy.ds_pipe_replicated = mesh.coordinates["pp"] > 0  # counted once in the norm

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
        """Asked by DeepSpeed's engine after the last backward pass."""
        return self._tied


def _ends_group(mesh: Mesh) -> Any:
    """The first and last stage of this rank's replica (all ranks must call)."""
    mine = None
    for dp in range(mesh.sizes["dp"]):
        for tp in range(mesh.sizes["tp"]):
            ranks = [mesh.rank_at(pp=pp, dp=dp, tp=tp) for pp in (0, mesh.sizes["pp"] - 1)]
            group = dist.new_group(ranks)
            mine = group if dist.get_rank() in ranks else mine
    return mine


class PipelineEngine(ZeroEngine):
    """One stage under DeepSpeed's 1F1B schedule."""

    def initialize(self, built: Built, optimizer: torch.optim.Optimizer, ds_config: dict[str, Any]) -> Any:
        """See `ZeroEngine.initialize`."""
        self.stage = built.wrapped
        self.relay = Relay(self.mesh, built.dims.hidden, self.case.precision, self.device.torch)
        self.clock = ComputeClock(self.device)
        self._loss_scale = 1.0
        module = _OneLayerPerStage(self.stage, self.mesh, self._loss)
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=ds_config)
        engine._INSTRUCTION_MAP = {
            kind: self._watched(kind, run) for kind, run in type(engine)._INSTRUCTION_MAP.items()
        }
        return engine

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return token_loss_sum(logits, labels) * self._loss_scale

    def _watched(self, kind: type, run: Any) -> Any:
        """An instruction of the schedule that tells the clock and the memory pass of itself."""

        def watched(engine: Any, **arguments: Any) -> None:
            if kind in _ENDS:
                self.clock.end()
                self.mark("step")
            elif kind in _PASSES:
                self.mark(_PASSES[kind])
            with self.clock.computing() if kind in _PASSES else nullcontext():
                MethodType(run, engine)(**arguments)

        return watched

    def train_batch(self, batches: Iterator[Batch], global_tokens: int, learning_rate: float) -> StepResult:
        """See `Engine.train_batch`. Every stage takes its micro-batches, so that all count the same."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        rows = [next(batches) for _ in range(self.accumulation_steps)]
        # The engine averages over micro-batches and data-parallel ranks; the loss is a sum over all of them.
        self._loss_scale = self.dp_size * self.accumulation_steps / global_tokens
        self.clock.begin()
        self.engine.train_batch(iter([(batch.input_ids, batch.labels) for batch in rows]))
        loss_sum = self.engine.dp_group_loss * (global_tokens / self.dp_size)
        return StepResult(loss_sum, self._grad_norm(), not self.engine.was_step_applied())

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """See `Engine.forward`. Evaluation passes micro-batches along one by one."""
        return self.relay.forward(self.stage, input_ids)

    def tracing(self, tally: Any) -> None:
        """See `Engine.tracing`: with stages the reduction makes one more bucket, after the last backward pass."""
        super().tracing(tally)
        tally.attribute(type(self.optimizer), "reduce_gradients", "buckets")

    def pipeline_time(self, skip: int) -> PipelineTime:
        """See `Engine.pipeline_time`."""
        return self.clock.read(skip)
