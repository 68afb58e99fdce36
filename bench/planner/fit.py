"""Which layout is the cheapest that fits, and how many devices a method needs at least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.planner.plan import CasePlan, plan_shape
from bench.spec.case import Case
from bench.spec.hardware import Gpu
from bench.spec.models import ModelShape

MOST_GPUS = 512


@dataclass(frozen=True)
class Cheapest:
    """The outcome of a search."""

    tuning: str
    gpu: Gpu
    plan: CasePlan | None
    """Fewest devices, and among equals the fastest; None where nothing up to MOST_GPUS fits."""
    alternatives: tuple[CasePlan, ...]
    """Other layouts that fit on as many devices, fastest first."""

    @property
    def sentence(self) -> str:
        """`full needs at least 8 × A100-SXM4-80GB (zero3) …`."""
        if self.plan is None:
            return f"{self.tuning} fits on no number of {self.gpu.name} up to {MOST_GPUS}, at one sample a device"
        plan = self.plan
        return (
            f"{self.tuning} needs at least {plan.world_size} × {self.gpu.name} ({plan.case.strategy}, "
            f"micro-batch {plan.case.micro_batch_size}, sequence {plan.case.seq_len}); {plan.reason}"
        )


def cheapest(fields: dict[str, Any], shape: ModelShape, gpu: Gpu, gpus_per_node: int = 8) -> Cheapest:
    """Search DDP, ZeRO 1 to 3 and tensor and pipeline parallelism over growing numbers of devices.

    Offload is left out: it moves the question to host memory. The search uses one sample a device, the least
    memory a layout can have.

    Args:
        fields: fields of the case but the layout.
        shape: its model.
        gpu: the device.
        gpus_per_node: tensor parallelism stays within a node.
    """
    tuning = fields["tuning"]
    world = 1
    while world <= MOST_GPUS:
        plans = [plan_shape(case, shape, world, gpu, gpus_per_node) for case in _layouts(fields, world, gpus_per_node)]
        fitting = [plan for plan in plans if plan.fits]
        if fitting:
            ranked = sorted(fitting, key=lambda plan: -plan.speed.samples_per_s)
            # A measured layout goes before an extrapolated one.
            ranked.sort(key=lambda plan: plan.extrapolated is not None)
            return Cheapest(tuning, gpu, ranked[0], tuple(ranked[1:]))
        world = world + 1 if world < gpus_per_node else world + gpus_per_node
    return Cheapest(tuning, gpu, None, ())


def _layouts(fields: dict[str, Any], world: int, gpus_per_node: int) -> Iterator[Case]:
    """Layouts of a world; those that the model's shape forbids are sorted out by the plan."""
    options: list[dict[str, Any]] = [{"engine": "ddp", "zero_stage": None}]
    options += [{"zero_stage": stage} for stage in (1, 2, 3) if world > 1]
    for tp in (2, 4, 8):
        if tp <= min(world, gpus_per_node) and world % tp == 0:
            options += [{"tp_size": tp, "zero_stage": stage} for stage in (1, 3)]
        for pp in (2, 4, 8):
            if tp * pp <= world and world % (tp * pp) == 0:
                options.append({"tp_size": tp, "pp_size": pp, "zero_stage": 1})
    for option in options:
        replicas = world // (option.get("tp_size", 1) * option.get("pp_size", 1))
        samples = replicas * (8 if option.get("pp_size", 1) > 1 else 1)
        layout = {"engine": "deepspeed", "micro_batch_size": 1, "global_batch_size": samples, **option}
        yield Case.model_validate({**fields, **layout})
