"""Tensor parallelism with DeepSpeed's own layers, for plain and LoRA models alike.

DeepSpeed's AutoTP walker takes PEFT's linear layers for leaves and drops their adapters, so layers are
swapped here instead: adapters first, then each linear layer inside them. DeepSpeed's engine is told by
the attributes its layers leave on the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.worker.parallel.mesh import Mesh

COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Split by outputs: each rank computes its own heads and MLP features."""
ROW = ("o_proj", "down_proj")
"""Split by inputs: partial sums are added over the ranks."""
HEAD_NORMS = ("q_norm", "k_norm")
"""Qwen3's norms within each head: one copy a rank, which sees the gradient of its own heads only."""


@dataclass(frozen=True)
class Shard:
    """How a parameter is split over the tensor-parallel ranks."""

    dim: int
    sizes: tuple[int, ...]

    def part(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """One rank's part of the whole tensor (a view)."""
        return whole.narrow(self.dim, sum(self.sizes[:rank]), self.sizes[rank])


def shard_of(parameter: torch.Tensor) -> Shard | None:
    """How this parameter is split, None where every tensor-parallel rank holds it whole."""
    return getattr(parameter, "ftbench_shard", None)


def shard_model(model: nn.Module, causal_lm: nn.Module, mesh: Mesh) -> None:
    """Replace linear layers, embedding and head by sharded ones, in place.

    Args:
        model: the model with its adapters, on meta or with values.
        causal_lm: the Hugging Face model inside it.
        mesh: this rank's place; its tensor axis is larger than 1.
    """
    from deepspeed.module_inject.layers import set_autotp_mode

    set_autotp_mode(training=True)  # otherwise the layers freeze their weights
    group = mesh.tp_group
    _shard_ends(causal_lm, group)
    for name, module in list(causal_lm.named_modules()):
        kind = name.rsplit(".", 1)[-1]
        if kind in COLUMN + ROW:
            _shard_linear(causal_lm, name, module, kind in COLUMN, group)
        elif kind in HEAD_NORMS:
            module.weight.ftbench_partial = True


def _shard_linear(model: nn.Module, name: str, module: nn.Module, column: bool, group: Any) -> None:
    """Swap a linear layer, or those inside PEFT's LoRA layer.

    Column: the adapter's A sees the whole input and stays whole, B is split like the base. Row: the other
    way round.
    """
    if isinstance(module, nn.Linear):
        model.set_submodule(name, _sharded(module, column, group))
        return
    module.base_layer = _sharded(module.base_layer, column, group)
    adapters = module.lora_B if column else module.lora_A
    for key, linear in list(adapters.items()):
        adapters[key] = _sharded(linear, column, group)


def _sharded(linear: nn.Linear, column: bool, group: Any, gather_output: bool = False) -> nn.Module:
    from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer

    if not column:
        layer = LinearAllreduce(linear, group)
        layer.weight.ftbench_shard = Shard(1, layer._partition_sizes)
        return layer
    layer = LinearLayer(linear, group, gather_output=gather_output)
    for parameter in (layer.weight, layer.bias):
        if parameter is not None:
            parameter.ftbench_shard = Shard(0, layer._partition_sizes)
    return layer


def _shard_ends(causal_lm: nn.Module, group: Any) -> None:
    """Split embedding and head by vocabulary; a head that is tied to the embedding stays so."""
    from deepspeed.module_inject.layers import VocabParallelEmbedding

    body, head = causal_lm.model, causal_lm.lm_head
    tied = isinstance(head, nn.Linear) and head.weight is getattr(body.embed_tokens, "weight", None)
    if tied:
        # Splitting one parameter twice would halve it twice: split a stand-in, then tie again.
        head.weight = nn.Parameter(torch.empty_like(head.weight, device="meta"), head.weight.requires_grad)
    if isinstance(body.embed_tokens, nn.Embedding):
        body.embed_tokens = VocabParallelEmbedding(body.embed_tokens, group)
        body.embed_tokens.weight.ftbench_shard = Shard(0, body.embed_tokens._partition_sizes)
    if isinstance(head, nn.Linear):
        causal_lm.lm_head = _sharded(head, column=True, group=group, gather_output=True)
    if tied:
        causal_lm.lm_head.weight = body.embed_tokens.weight


def sum_partial_gradients(model: nn.Module, mesh: Mesh) -> None:
    """Add the gradients of per-head norms over the tensor-parallel ranks, as each is computed."""

    def add(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=mesh.tp_group)
        return gradient

    for parameter in model.parameters():
        if getattr(parameter, "ftbench_partial", False) and parameter.requires_grad:
            parameter.register_hook(add)


def assemble(parameter: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """The whole tensor of a parameter, on every rank of its tensor group (all of them must call)."""
    shard, mine = shard_of(parameter), parameter.detach()
    if shard is None:
        return mine
    parts = list(_parts(mine, shard, mesh))
    return torch.cat(parts, shard.dim)


def _parts(mine: torch.Tensor, shard: Shard, mesh: Mesh) -> Iterator[torch.Tensor]:
    """Each rank's part in turn; parts may differ in size, which gathering at once would not allow."""
    for rank, size in enumerate(shard.sizes):
        shape = list(mine.shape)
        shape[shard.dim] = size
        part = mine.contiguous() if rank == mesh.coordinates["tp"] else mine.new_empty(shape)
        dist.broadcast(part, mesh.rank_at(tp=rank), group=mesh.tp_group)
        yield part
