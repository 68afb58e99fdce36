"""Shapes of causal language models: a catalogue with sources, or any `config.json`. No torch."""

from __future__ import annotations

import csv
import difflib
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import SpecError
from bench.spec.paths import local_path, looks_local

CATALOGUE = Path(__file__).parent / "catalogue" / "models.csv"
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of one decoder block, the ones that `all-linear` adapts."""
_DENSE_TYPES = ("qwen2", "qwen3", "llama", "mistral")
# Short names that several checkpoints share; refused, with what exists.
_AMBIGUOUS = ("qwen-32b", "qwen32b", "qwen 32b", "qwen/qwen-32b", "qwen-7b-base", "llama-7b", "llama-70b")


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a dense decoder: RMSNorm, rotary attention with grouped heads, gated MLP."""

    name: str
    """Catalogue name, or where the config was read."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    """Not always hidden / heads: Qwen3-32B has 64 heads of 128 and hidden 5120."""
    intermediate: int
    vocab: int
    tied: bool
    """Input embedding and output head share one matrix."""
    qkv_bias: bool
    qk_norm: bool
    """RMSNorm over each head of query and key (Qwen3)."""
    source: str
    """Where the dimensions are from."""
    o_bias: bool = False
    mlp_bias: bool = False
    model_type: str = "llama"
    """The config's word for the architecture."""

    @property
    def config(self) -> dict[str, Any]:
        """The fields of a `config.json` from which the model's tensors follow."""
        return {
            "model_type": self.model_type, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": self.layers, "tie_word_embeddings": self.tied, "hidden_size": self.hidden,
            "head_dim": self.head_dim, "intermediate_size": self.intermediate, "vocab_size": self.vocab,
            "attention_bias": self.o_bias, "mlp_bias": self.mlp_bias,
        }  # fmt: skip

    @property
    def q_dim(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of a block's linear layers by name."""
        h, q, kv, i = self.hidden, self.q_dim, self.kv_dim, self.intermediate
        return {
            "q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h),
            "gate_proj": (h, i), "up_proj": (h, i), "down_proj": (i, h),
        }  # fmt: skip

    @property
    def matrix_parameters_per_layer(self) -> int:
        """Elements of a block's linear weights."""
        return sum(inputs * outputs for inputs, outputs in self.linears.values())

    @property
    def vector_parameters_per_layer(self) -> int:
        """Elements of a block's norms and biases."""
        biases = self.qkv_bias * (self.q_dim + 2 * self.kv_dim) + self.o_bias * self.hidden
        biases += self.mlp_bias * (2 * self.intermediate + self.hidden)
        return 2 * self.hidden + self.qk_norm * 2 * self.head_dim + biases

    @property
    def parameters_per_layer(self) -> int:
        """All elements of one block."""
        return self.matrix_parameters_per_layer + self.vector_parameters_per_layer

    @property
    def embedding_parameters(self) -> int:
        """Input embedding, and the output head where it is not tied."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All elements, a tied matrix once."""
        return self.layers * self.parameters_per_layer + self.hidden + self.embedding_parameters

    @property
    def non_embedding_parameters(self) -> int:
        """Elements that are not embedding or head."""
        return self.parameters - self.embedding_parameters

    def adapter_modules(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        """The linear layers that LoRA adapts.

        Raises:
            SpecError: a target that no layer of this shape has.
        """
        if targets == ("all-linear",):
            return ALL_LINEAR
        for target in targets:
            if target not in self.linears:
                raise SpecError(f"target_modules: {target!r} is none of {', '.join(ALL_LINEAR)} or all-linear")
        return tuple(name for name in ALL_LINEAR if name in targets)

    def lora_parameters_per_layer(self, rank: int, targets: tuple[str, ...]) -> int:
        """Adapter elements of one block: r × (inputs + outputs) a module (LoRA, arXiv:2106.09685)."""
        sizes = self.linears
        return sum(rank * sum(sizes[name]) for name in self.adapter_modules(targets))

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Adapter elements of the whole model."""
        return self.layers * self.lora_parameters_per_layer(rank, targets)


def shape_of(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> ModelShape:
    """Find a model's shape.

    Args:
        name_or_path: a catalogue name or alias, a folder with a `config.json`, or such a file; also a
            hub name whose config lies in the local Hugging Face cache.
        overrides: fields of the config to replace, in the config's own spelling.

    Raises:
        SpecError: unknown or ambiguous name (the message lists the known ones), unreadable config, or
            an architecture whose shape the formulas do not describe.
    """
    shape = _catalogued(name_or_path)
    if shape is None:
        path = _config_path(name_or_path)
        if path is None:
            raise SpecError(_unknown(name_or_path))
        return shape_from_config(_read_config(path), str(name_or_path), overrides)
    return _overridden(shape, overrides or {})


def model_names() -> list[str]:
    """Names of the catalogue."""
    return [shape.name for shape, _ in _catalogue()]


def shape_from_config(config: Mapping[str, Any], name: str, overrides: Mapping[str, Any] | None = None) -> ModelShape:
    """Read the shape from the fields of a Hugging Face `config.json`.

    Raises:
        SpecError: a field is missing or not positive, or the model is no dense gated decoder.
    """
    fields = {**config, **(overrides or {})}
    kind = fields.get("model_type")
    if kind not in _DENSE_TYPES:
        raise SpecError(f"model {name!r}: model_type {kind!r} has an unknown shape; known: {', '.join(_DENSE_TYPES)}")
    heads = _positive(fields, "num_attention_heads", name)
    hidden = _positive(fields, "hidden_size", name)
    shape = ModelShape(
        name=name, hidden=hidden, layers=_positive(fields, "num_hidden_layers", name), heads=heads,
        kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or hidden // heads),
        intermediate=_positive(fields, "intermediate_size", name), vocab=_positive(fields, "vocab_size", name),
        tied=bool(fields.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bool(fields.get("attention_bias", False)), qk_norm=kind == "qwen3",
        o_bias=kind != "qwen2" and bool(fields.get("attention_bias", False)),
        mlp_bias=bool(fields.get("mlp_bias", False)), source=f"config.json of {name}", model_type=kind,
    )  # fmt: skip
    return _checked(shape)


def _positive(fields: Mapping[str, Any], key: str, name: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(f"model {name!r}: {key} is {value!r}; a positive whole number is needed")
    return value


def _checked(shape: ModelShape) -> ModelShape:
    if shape.heads % shape.kv_heads:
        raise SpecError(f"model {shape.name!r}: {shape.heads} heads are no multiple of {shape.kv_heads} KV heads")
    return shape


_OVERRIDES = {
    "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "intermediate_size": "intermediate",
    "vocab_size": "vocab", "tie_word_embeddings": "tied",
}  # fmt: skip


def _overridden(shape: ModelShape, overrides: Mapping[str, Any]) -> ModelShape:
    given = {key: value for key, value in overrides.items() if key in _OVERRIDES}
    for key, value in given.items():
        if key != "tie_word_embeddings" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise SpecError(f"model_overrides: {key} is {value!r}; a positive whole number is needed")
    changed = {_OVERRIDES[key]: value for key, value in given.items()}
    return _checked(replace(shape, **changed)) if changed else shape


@functools.cache
def _catalogue() -> tuple[tuple[ModelShape, tuple[str, ...]], ...]:
    numbers = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
    entries = []
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            flags = {key: row[key] == "yes" for key in ("tied", "qkv_bias", "qk_norm")}
            shape = ModelShape(
                name=row["name"], source=row["source"], model_type=row["model_type"],
                **{key: int(row[key]) for key in numbers}, **flags,
            )  # fmt: skip
            if shape.parameters != int(row["parameters"]):
                raise SpecError(f"{CATALOGUE.name}: {shape.name}: {shape.parameters} parameters follow from its shape")
            entries.append((shape, tuple(filter(None, row["aliases"].split(";")))))
    return tuple(entries)


def _catalogued(name: str) -> ModelShape | None:
    """Exact match, letter case aside, of the name, an alias, or the part of either after the slash."""
    wanted = name.strip().lower()
    if wanted in _AMBIGUOUS:
        size = wanted.rsplit("-", 1)[-1].removeprefix("qwen").strip()
        same = [n for n in model_names() if n.lower().endswith(size)]
        raise SpecError(f"model {name!r} is ambiguous; checkpoints of that size: {', '.join(same)}")
    for shape, aliases in _catalogue():
        names = [shape.name.lower(), *(alias.lower() for alias in aliases)]
        if wanted in names or wanted in (n.rsplit("/", 1)[-1] for n in names):
            return shape
    return None


def _config_path(name: str) -> Path | None:
    path = local_path(name)
    if path is not None:
        return path / "config.json" if path.is_dir() else path
    if looks_local(name):
        raise SpecError(f"model {name!r}: no such file or folder")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = sorted(hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))
    return found[-1] if found else None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read as a config.json: {error}") from None
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected a JSON object")
    return config


def _unknown(name: str) -> str:
    names = model_names()
    close = difflib.get_close_matches(name, names, 3, 0.5)
    hint = f"; close: {', '.join(close)}" if close else ""
    return (
        f"model {name!r} has an unknown shape{hint}; give a folder with its config.json, or one of: {', '.join(names)}"
    )
