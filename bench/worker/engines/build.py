"""Which adaptor runs a case."""

from __future__ import annotations

from typing import Any

from bench.spec.case import Case
from bench.worker.device import Device
from bench.worker.engines.ddp import DdpEngine
from bench.worker.engines.protocol import Engine
from bench.worker.parallel.build import Built
from bench.worker.parallel.mesh import Mesh


def build_engine(case: Case, built: Built, device: Device, mesh: Mesh, ds_config: dict[str, Any] | None) -> Engine:
    """Wrap a model for training.

    Args:
        case: the case.
        built: this rank's part of the model.
        device: this rank's device.
        mesh: this rank's place.
        ds_config: the resolved DeepSpeed config; None under ddp.
    """
    if ds_config is None:
        return DdpEngine(case, built, device, mesh)
    if case.pp_size > 1 and case.zero_stage == 3:
        from bench.worker.engines.staged import StagedEngine

        return StagedEngine(case, built, device, mesh, ds_config)
    if case.pp_size > 1:
        from bench.worker.engines.pipeline import PipelineEngine

        return PipelineEngine(case, built, device, mesh, ds_config)
    if case.sp_size > 1:
        from bench.worker.engines.sequence import SequenceEngine

        return SequenceEngine(case, built, device, mesh, ds_config)
    from bench.worker.engines.zero import ZeroEngine

    return ZeroEngine(case, built, device, mesh, ds_config)
