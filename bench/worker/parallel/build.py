"""From a case to the part of the model that one rank owns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from bench.errors import UnsupportedCase
from bench.records.schema import ModelDims, Parameters
from bench.spec.case import Case
from bench.spec.layout import why_model_unsupported
from bench.worker.device import DTYPES, Device
from bench.worker.model import build_model, count, load_config, model_dims, unique_weights, wrap_adapters
from bench.worker.parallel.materialize import materialize
from bench.worker.parallel.mesh import Mesh
from bench.worker.parallel.stage import Cut, Stage, keep_stage
from bench.worker.parallel.tensor import shard_model, shard_of, sum_partial_gradients


@dataclass(frozen=True)
class WholeParameter:
    """One parameter of the whole model, wherever it lives."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    stage: int
    """The pipeline stage that owns it."""

    @property
    def elements(self) -> int:
        """Of the whole parameter."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the whole parameter."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class Built:
    """A rank's part of the model, and what the whole is."""

    model: nn.Module
    """With adapters, in Hugging Face's names."""
    wrapped: nn.Module
    """What an engine wraps: the model, or its stage's forward pass."""
    parameters: Parameters
    dims: ModelDims
    whole: tuple[WholeParameter, ...]
    """Every parameter of the whole model in order, a tied one once; the same on every rank."""


def build(case: Case, device: Device, ds_config: dict[str, Any] | None, mesh: Mesh) -> Built:
    """Build the part of the model that this rank owns.

    Without tensor and pipeline axes that is the whole model, which ZeRO-3 shards while it is built.

    Raises:
        UnsupportedCase: model, kernel or targets cannot be had, or the model does not fit the layout.
    """
    if any(size > 1 for size in case.model_axes.values()):
        reason = why_model_unsupported(case, load_config(case).to_dict())
        if reason is not None:
            raise UnsupportedCase(reason)
    if mesh.grid is None:
        model, parameters, dims = build_model(case, device, ds_config)
        return Built(model, model, parameters, dims, _inventory(model))
    return _build_part(case, device, mesh)


def _build_part(case: Case, device: Device, mesh: Mesh) -> Built:
    """Lay the whole model out on the meta device, take this rank's part, and give that part values."""
    model, causal_lm, config, counts = _lay_out(case)
    dims = model_dims(config, causal_lm)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    cut = Cut.even(config.num_hidden_layers, case.pp_size)
    whole = _inventory(model, cut)
    if case.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    keep_stage(causal_lm, cut, mesh.coordinates["pp"])
    if case.tp_size > 1:
        shard_model(model, causal_lm, mesh)
    materialize(model, shapes, case, config, device, mesh)
    for parameter in model.parameters():
        # DeepSpeed's gradient norm counts what is marked: every shard, and what is replicated once.
        parameter.model_parallel = shard_of(parameter) is not None or mesh.coordinates["tp"] == 0
    if case.tp_size > 1:
        sum_partial_gradients(model, mesh)
    wrapped = Stage(model, causal_lm, cut, mesh) if case.pp_size > 1 else model
    return Built(model, wrapped, counts, dims, whole)


def _lay_out(case: Case) -> tuple[nn.Module, nn.Module, PretrainedConfig, Parameters]:
    """The whole model with adapters on the meta device: (model, causal LM inside it, config, counts)."""
    config = load_config(case)
    try:
        with torch.device("meta"):
            causal_lm = AutoModelForCausalLM.from_config(
                config, dtype=DTYPES[case.precision], attn_implementation=case.attention
            )
    except ImportError as error:
        raise UnsupportedCase(f"model {case.model!r}: {str(error).splitlines()[0]}") from error
    base = count(causal_lm.parameters())
    embedding = count(unique_weights(causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings()))
    model = wrap_adapters(causal_lm, case) if case.tuning == "lora" else causal_lm
    counts = Parameters(
        total=count(model.parameters()), base=base, embedding=embedding,
        trainable=count(p for p in model.parameters() if p.requires_grad),
    )  # fmt: skip
    return model, causal_lm, config, counts


def _inventory(model: nn.Module, cut: Cut | None = None) -> tuple[WholeParameter, ...]:
    return tuple(
        WholeParameter(
            name, tuple(getattr(p, "ds_shape", p.shape)), p.dtype, p.requires_grad, cut.owner(name) if cut else 0
        )
        for name, p in model.named_parameters()
    )
