"""ZeRO-3 with pipeline stages: an ordinary DeepSpeed engine per stage under our own 1F1B schedule.

Experimental: DeepSpeed's pipeline engine refuses ZeRO-3, and this relies on how 0.19.8 behaves inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import partitioned_param_coordinator

from bench.records.schema import PipelineTime
from bench.worker.batches import Batch
from bench.worker.engines.protocol import StepResult
from bench.worker.engines.zero import ZeroEngine
from bench.worker.loss import token_loss_sum
from bench.worker.parallel.build import Built
from bench.worker.parallel.clock import ComputeClock
from bench.worker.parallel.relay import Relay


class StagedEngine(ZeroEngine):
    """One stage, whose ZeRO group are the data-parallel ranks that hold the same stage."""

    def initialize(self, built: Built, optimizer: torch.optim.Optimizer, ds_config: dict[str, Any]) -> Any:
        """See `ZeroEngine.initialize`."""
        self.relay = Relay(self.mesh, built.dims.hidden, self.case.precision, self.device.torch)
        self.clock = ComputeClock(self.device)
        self._running: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        _check_traces_within(self.mesh.dp_group)
        engine, *_ = deepspeed.initialize(
            model=built.wrapped, optimizer=optimizer, config=ds_config, mpu=self.mesh.grid
        )
        return engine

    def train_batch(self, batches: Iterator[Batch], global_tokens: int, learning_rate: float) -> StepResult:
        """See `Engine.train_batch`. Every stage takes its micro-batches, so that all count the same."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        rows = [next(batches) for _ in range(self.accumulation_steps)]
        self._scale, self._total = self.dp_size / global_tokens, torch.zeros((), device=self.device.torch)
        self.clock.begin()
        self._one_forward_one_backward(rows)
        self.clock.end()
        self.mark("step")
        self.engine.step()
        dist.broadcast(self._total, self.mesh.rank_at(pp=self.relay.last), group=self.mesh.pp_group)
        return StepResult(self._total, self._grad_norm(), not self.engine.was_step_applied())

    def _one_forward_one_backward(self, rows: list[Batch]) -> None:
        """The 1F1B schedule of PipeDream-Flush, as Megatron-LM has it (arXiv:2104.04473, section 2.2)."""
        ids, relay = [batch.input_ids for batch in rows], self.relay
        warm = min(relay.last - relay.stage, len(rows))
        for i in range(warm):
            relay.with_after(self._forward(rows[i], relay.with_before(None, ids[i])), None)
        inputs = relay.with_before(None, ids[warm]) if warm < len(rows) else None
        for done in range(len(rows) - warm):
            states = self._forward(rows[warm + done], inputs)
            gradient = self._backward(relay.with_after(states, ids[done]), last=done == len(rows) - 1)
            more = warm + done + 1 < len(rows)
            inputs = relay.with_before(gradient, ids[warm + done + 1] if more else None)
        for done in range(len(rows) - warm, len(rows)):
            gradient = self._backward(relay.with_after(None, ids[done]), last=done == len(rows) - 1)
            relay.with_before(gradient, None)

    def _forward(self, batch: Batch, inputs: torch.Tensor) -> torch.Tensor | None:
        """One forward pass; hidden states for the next stage, None on the last."""
        self.mark("forward")
        with self.clock.computing():
            if inputs.is_floating_point():
                inputs.requires_grad_()
            out = self.engine(inputs)
            if self.relay.stage == self.relay.last:
                loss_sum = token_loss_sum(out, batch.labels)
                self._total += loss_sum.detach()
                out = loss_sum * self._scale
        self._running.append((inputs, out))
        return out.detach() if self.relay.stage < self.relay.last else None

    def _backward(self, gradient: torch.Tensor | None, last: bool) -> torch.Tensor | None:
        """The backward pass of the oldest micro-batch; the gradient for the stage before."""
        self.mark("backward")
        inputs, out = self._running.popleft()
        with self.clock.computing():
            # Several forward passes lie between two backward ones: without this, the engine takes the
            # second for a part of the first and overwrites gradients.
            self.optimizer.clear_backward_seen_flag()
            self.engine.set_gradient_accumulation_boundary(last)
            # The engine wants a scalar; this one's gradient with respect to the output is the given one.
            scalar = out if gradient is None else (out.float() * gradient.float()).sum()
            self.engine.backward(scalar, scale_wrt_gas=False)
        return inputs.grad

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """See `Engine.forward`. Evaluation passes micro-batches along one by one."""
        return self.relay.forward(self.engine, input_ids)

    def pipeline_time(self, skip: int) -> PipelineTime:
        """See `Engine.pipeline_time`."""
        return self.clock.read(skip)


def _check_traces_within(group: Any) -> None:
    """Let ZeRO-3 compare its traces among the ranks of one stage.

    It compares them with rank 0 of the world, whose stage has other modules and is elsewhere in the
    schedule: the ranks would wait for each other for ever.
    """

    def same_in_group(numbers: list[int]) -> None:
        everywhere: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(everywhere, numbers, group=group)
        if any(other != numbers for other in everywhere):
            raise RuntimeError("ranks of one pipeline stage ran different modules under ZeRO-3")

    partitioned_param_coordinator.assert_ints_same_as_other_ranks = same_in_group
