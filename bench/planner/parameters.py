"""The parameters of one pipeline stage, tensor by tensor, in the order in which a model registers them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.planner.job import Job

_ROW_PARALLEL = ("o_proj", "down_proj")


@dataclass(frozen=True)
class Parameter:
    """One tensor as a rank of its tensor-parallel group holds it."""

    module: str
    """Which part of the block or model it belongs to."""
    numel: int
    trainable: bool
    matrix: bool
    adapter: bool = False


@dataclass(frozen=True)
class Stage:
    """What one pipeline stage holds."""

    layers: int
    first: bool
    """Has the input embedding."""
    last: bool
    """Has the final norm, the output head and the loss."""
    index: int


def stages_of(job: Job) -> list[Stage]:
    """Split the blocks evenly; earlier stages take the remainder, since the last one has the head."""
    base, extra = divmod(job.shape.layers, job.pp)
    return [Stage(base + (i < extra), first=i == 0, last=i == job.pp - 1, index=i) for i in range(job.pp)]


def block_parameters(job: Job) -> tuple[Parameter, ...]:
    """Tensors of one decoder block: adapters follow their layer, norms are whole on every rank."""
    return _block_parameters(job.layout)


@cache
def _block_parameters(job: Job) -> tuple[Parameter, ...]:
    shape, full = job.shape, not job.lora
    found: list[Parameter] = []
    for name, (inputs, outputs) in shape.linears.items():
        found.append(Parameter(name, inputs * outputs // job.tp, full, True))
        bias = {"o_proj": shape.o_bias}.get(name, shape.qkv_bias if name[0] in "qkv" else shape.mlp_bias)
        if bias:
            whole = name in _ROW_PARALLEL
            found.append(Parameter(name, outputs if whole else outputs // job.tp, full, False))
        if job.lora and name in shape.adapter_modules(job.targets):
            # Column-parallel layers split B, row-parallel ones split A; the other half is whole.
            row = name in _ROW_PARALLEL
            a = job.lora_rank * (inputs // job.tp if row else inputs)
            b = job.lora_rank * (outputs if row else outputs // job.tp)
            found += [Parameter(name, a, True, True, True), Parameter(name, b, True, True, True)]
        if name == "o_proj" and shape.qk_norm:
            found += [Parameter("q_norm", shape.head_dim, full, False)]
            found += [Parameter("k_norm", shape.head_dim, full, False)]
    norms = [Parameter(n, shape.hidden, full, False) for n in ("input_norm", "post_norm")]
    return (*found, *norms)


def embedding(job: Job) -> Parameter:
    """Input embedding, split over the vocabulary under tensor parallelism."""
    return Parameter("embed", -(-job.shape.vocab // job.tp) * job.shape.hidden, not job.lora, True)


def head(job: Job) -> Parameter:
    """Output head, split over the vocabulary under tensor parallelism."""
    return Parameter("head", -(-job.shape.vocab // job.tp) * job.shape.hidden, not job.lora, True)


def stage_parameters(job: Job, stage: Stage) -> tuple[Parameter, ...]:
    """All tensors of a stage in registration order; a tied head is the embedding, held again on another stage."""
    return _stage_parameters(job.layout, stage)


def trained_elements(job: Job, stage: Stage) -> int:
    """Trainable elements of a stage."""
    return _trained_elements(job.layout, stage)


@cache
def _trained_elements(job: Job, stage: Stage) -> int:
    return count(stage_parameters(job, stage), trainable=True)


@cache
def _stage_parameters(job: Job, stage: Stage) -> tuple[Parameter, ...]:
    found = [embedding(job)] if stage.first else []
    found += list(block_parameters(job)) * stage.layers
    if stage.last:
        found.append(Parameter("norm", job.shape.hidden, not job.lora, False))
        if not (job.shape.tied and stage.first):
            found.append(head(job))
    return tuple(found)


def count(parameters: tuple[Parameter, ...], trainable: bool | None = None, adapter: bool | None = None) -> int:
    """Elements of the parameters that match."""
    return sum(
        p.numel for p in parameters
        if (trainable is None or p.trainable == trainable) and (adapter is None or p.adapter == adapter)
    )  # fmt: skip


@cache
def optimizer_groups(job: Job, stage: Stage) -> tuple[tuple[int, ...], ...]:
    """Sizes of the trainable tensors in the worker's two groups: matrices with decay, then vectors."""
    trained = [p for p in stage_parameters(job, stage) if p.trainable]
    groups = (tuple(p.numel for p in trained if p.matrix), tuple(p.numel for p in trained if not p.matrix))
    return tuple(group for group in groups if group)
