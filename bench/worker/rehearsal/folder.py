"""A folder with a config that transformers can build a model from, where only the catalogue knows the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.spec.models import ModelShape

POSITIONS = 2**20
"""No limit of positions stands in the way: rotary tables are as long as the sequence, whatever the config says."""


def config_fields(shape: ModelShape) -> dict[str, Any]:
    """The `config.json` of a model of this shape.

    Args:
        shape: from the catalogue or a config.
    """
    kind = "qwen3" if shape.qk_norm else "qwen2" if shape.qkv_bias and not shape.o_bias else "llama"
    return {
        "model_type": kind, "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate, "vocab_size": shape.vocab, "tie_word_embeddings": shape.tied,
        "attention_bias": shape.o_bias, "mlp_bias": shape.mlp_bias, "max_position_embeddings": POSITIONS,
    }  # fmt: skip


def write_model_folder(folder: Path, shape: ModelShape) -> Path:
    """Write the config into a folder, without weights.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_fields(shape), indent=2), encoding="utf-8")
    return folder
