"""How long a pipeline stage computes within the schedule of a step: the rest is the bubble."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.records.schema import PipelineTime
from bench.worker.device import Device


class ComputeClock:
    """Adds up forward and backward passes of each step, on the device's own clock where it has one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._steps: list[tuple[tuple[Any, Any], list[tuple[Any, Any]]]] = []
        """Of each step: begin and end of the schedule, and of every pass in it."""
        self._passes: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def _now(self) -> Any:
        if not self._device.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        """The passes of a step begin."""
        self._passes, self._begin = [], self._now()

    def end(self) -> None:
        """All passes are done; reduction and optimizer follow. Later calls in the same step change nothing."""
        if self._begin is not None:
            self._steps.append(((self._begin, self._now()), self._passes))
            self._begin = None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around one forward or backward pass."""
        begin = self._now()
        yield
        self._passes.append((begin, self._now()))

    def read(self, skip: int) -> PipelineTime:
        """Sums over the steps after the first `skip`; call when the device is done."""
        counted = self._steps[skip:]
        return PipelineTime(
            compute_s=sum(_seconds(*one) for _, passes in counted for one in passes),
            schedule_s=sum(_seconds(*whole) for whole, _ in counted),
        )


def _seconds(begin: Any, end: Any) -> float:
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1000
