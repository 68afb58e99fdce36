"""Which adaptor runs a case."""

from __future__ import annotations

from typing import Any

from torch import nn

from bench.spec.case import Case
from bench.worker.device import Device
from bench.worker.engines.ddp import DdpEngine
from bench.worker.engines.protocol import Engine


def build_engine(
    case: Case, model: nn.Module, device: Device, accumulation_steps: int, ds_config: dict[str, Any] | None
) -> Engine:
    """Wrap a model for training.

    Args:
        case: the case.
        model: from `build_model`.
        device: this rank's device.
        accumulation_steps: micro-batches per optimizer step and rank.
        ds_config: the resolved DeepSpeed config; None under ddp.
    """
    if ds_config is None:
        return DdpEngine(case, model, device, accumulation_steps)
    from bench.worker.engines.zero import ZeroEngine

    return ZeroEngine(case, model, device, accumulation_steps, ds_config)
