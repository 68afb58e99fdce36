"""Optimizer, learning-rate schedule, and fp32 master weights for engines that keep none."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from bench.spec.case import Case


def learning_rate(case: Case, step: int) -> float:
    """Learning rate of a step (from 0): linear warm-up, then constant, or decay to zero after the last."""
    if step < case.lr_warmup_steps:
        return case.learning_rate * (step + 1) / case.lr_warmup_steps
    if case.lr_schedule == "constant":
        return case.learning_rate
    done = (step - case.lr_warmup_steps) / max(1, case.steps - case.lr_warmup_steps)
    share = 1 - done if case.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return case.learning_rate * share


def parameter_groups(case: Case, named: Iterable[tuple[str, nn.Parameter]]) -> list[dict]:
    """Trainable parameters in two groups: matrices with weight decay, vectors without."""
    trainable = [p for _, p in named if p.requires_grad]
    matrices = [p for p in trainable if len(getattr(p, "ds_shape", p.shape)) >= 2]
    vectors = [p for p in trainable if len(getattr(p, "ds_shape", p.shape)) < 2]
    groups = [
        {"params": matrices, "weight_decay": case.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(case: Case, groups: list[dict]) -> torch.optim.Optimizer:
    """torch AdamW, or DeepSpeed's CPUAdam where the optimizer is offloaded."""
    options = {
        "lr": case.learning_rate, "betas": (case.adam_beta1, case.adam_beta2), "eps": case.adam_epsilon,
    }  # fmt: skip
    if case.offload_optimizer == "cpu":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(groups, adamw_mode=True, **options)
    fused = case.optimizer == "adamw_fused"
    return torch.optim.AdamW(groups, fused=fused or None, foreach=False if not fused else None, **options)


class MasterWeights:
    """fp32 copies of half-precision parameters, stepped in their stead.

    DeepSpeed's ZeRO optimizers keep such copies; under DDP this gives the same arithmetic.
    """

    def __init__(self, case: Case, groups: list[dict]) -> None:
        self.parameters = [p for group in groups for p in group["params"]]
        self.masters = [nn.Parameter(p.detach().float()) for p in self.parameters]
        twins = dict(zip(map(id, self.parameters), self.masters, strict=True))
        fp32_groups = [{**group, "params": [twins[id(p)] for p in group["params"]]} for group in groups]
        self.optimizer = build_optimizer(case, fp32_groups)

    def take_gradients(self) -> None:
        """Move the gradients to fp32."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad.float() if parameter.grad is not None else None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the stepped weights back, and drop the fp32 gradients."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.copy_(master)
            master.grad = None
