"""Values for a model that was laid out on the meta device: only what this rank owns is ever made."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from bench.errors import UnsupportedCase
from bench.spec.case import Case
from bench.spec.paths import local_path
from bench.worker.device import Device, generator_for
from bench.worker.parallel.mesh import Mesh
from bench.worker.parallel.tensor import shard_of


@torch.no_grad()
def materialize(
    model: nn.Module,
    shapes: dict[str, tuple[int, ...]],
    case: Case,
    config: PretrainedConfig,
    device: Device,
    mesh: Mesh,
) -> None:
    """Replace every meta parameter by one with values, one at a time.

    At most one whole parameter exists beside what the rank keeps, and a part only where weights are read
    from files.

    Args:
        model: laid out, adapters, cut and shards included.
        shapes: whole shape of each parameter.
        case: the case.
        config: the model's config.
        device: where to place the parameters.
        mesh: this rank's place.
    """
    source = _Source(case, config, device)
    made: dict[int, nn.Parameter] = {}
    for module_name, module in model.named_modules(remove_duplicate=False):
        for leaf, old in list(module._parameters.items()):
            if old is not None and id(old) not in made:
                name = f"{module_name}.{leaf}"
                made[id(old)] = _like(old, source.value(name, shapes[name], old, mesh))
            if old is not None:
                module._parameters[leaf] = made[id(old)]
    _rebuild_buffers(model, config, device)


class _Source:
    """Where values come from: seeded by name, or files."""

    def __init__(self, case: Case, config: PretrainedConfig, device: Device) -> None:
        self.case, self.config, self.device = case, config, device
        self.files = None if case.weights == "random" else _Files(case.model)

    def value(self, name: str, shape: tuple[int, ...], old: nn.Parameter, mesh: Mesh) -> torch.Tensor:
        """This rank's part of a parameter, on the device and in the type of the old one."""
        shard, blank = shard_of(old), {"size": shape, "dtype": old.dtype, "device": self.device.torch}
        whole: Any
        if "lora_" in name:
            whole = _adapter(name, torch.zeros(**blank), self.case.seed)
        elif self.files is not None:
            whole = self.files.slice(base_name(name))
        else:
            whole = _drawn(base_name(name), torch.empty(**blank), self.case.seed, self.config)
        part = shard.part(whole, mesh.coordinates["tp"]) if shard else whole
        return part.to(self.device.torch, old.dtype)


def base_name(name: str) -> str:
    """The name that a parameter has in the model without adapters."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _like(old: nn.Parameter, value: torch.Tensor) -> nn.Parameter:
    """A parameter with the values that keeps what was noted on the old one."""
    new = nn.Parameter(value.clone(memory_format=torch.contiguous_format), old.requires_grad)
    new.__dict__.update({name: noted for name, noted in old.__dict__.items() if name not in new.__dict__})
    return new


def _drawn(name: str, value: torch.Tensor, seed: int, config: PretrainedConfig) -> torch.Tensor:
    """The same random weights as `bench.worker.model.draw_weights` draws."""
    if value.dim() < 2:
        return value.fill_(0.0 if name.endswith("bias") else 1.0)
    std = getattr(config, "initializer_range", 0.02)
    return value.normal_(0.0, std, generator=generator_for(name, seed, value.device))


def _adapter(name: str, value: torch.Tensor, seed: int) -> torch.Tensor:
    """A as PEFT's kaiming_uniform(a=√5) draws it, seeded by name; B is zero, so that training starts at the base."""
    if "lora_A" not in name:
        return value
    bound = 1 / math.sqrt(value.shape[1])
    return value.uniform_(-bound, bound, generator=generator_for(name, seed, value.device))


def _rebuild_buffers(model: nn.Module, config: PretrainedConfig, device: Device) -> None:
    """Compute the rotary tables, the only buffers of the models that are laid out this way."""
    for name, module in list(model.named_modules()):
        if any(buffer is not None and buffer.is_meta for buffer in module._buffers.values()):
            if name.rsplit(".", 1)[-1] != "rotary_emb":
                raise UnsupportedCase(f"module {name} has buffers that cannot be rebuilt; take a data-parallel layout")
            model.set_submodule(name, type(module)(config=config).to(device.torch))


class _Files:
    """Reads single tensors, or the slices of them that are asked for, from safetensors files."""

    def __init__(self, model: str) -> None:
        self.folder = local_path(model) or _downloaded(model)
        index = self.folder / "model.safetensors.index.json"
        self.files: dict[str, str] | None = None
        self._open: dict[str, Any] = {}
        if index.is_file():
            self.files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]

    def slice(self, name: str) -> _Lazy:
        """A tensor that is read when a part of it is taken."""
        file = self.files.get(name) if self.files else "model.safetensors"
        if file is None:
            raise UnsupportedCase(f"model: {self.folder} has no tensor {name!r}")
        try:
            return _Lazy(self._opened(file).get_slice(name))
        except Exception as error:  # safetensors has no exception of its own for a missing name
            raise UnsupportedCase(f"model: {self.folder / file} has no tensor {name!r}") from error

    def _opened(self, file: str) -> Any:
        from safetensors import safe_open

        if file not in self._open:
            self._open[file] = safe_open(self.folder / file, "pt")
        return self._open[file]


class _Lazy:
    """A tensor in a file; `narrow` reads the part alone."""

    def __init__(self, view: object) -> None:
        self._view = view

    def narrow(self, dim: int, start: int, size: int) -> torch.Tensor:
        """As torch's."""
        return self._view[(slice(None),) * dim + (slice(start, start + size),)]

    def to(self, *where: object) -> torch.Tensor:
        """The whole tensor, on a device."""
        return self._view[:].to(*where)


def _downloaded(model: str) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json"]))
