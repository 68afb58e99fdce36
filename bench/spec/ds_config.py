"""The exact DeepSpeed config of a case, from a template; DeepSpeed's spellings live here alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.errors import SpecError
from bench.spec.case import Case
from bench.spec.paths import ROOT, local_path

TEMPLATES = ROOT / "ds_configs"
AUTO = "auto"


def template_path(case: Case) -> Path:
    """The template a case uses: its own `ds_config`, or the one of its ZeRO stage.

    Raises:
        SpecError: the file does not exist.
    """
    offload = "-offload" if case.offload_optimizer == "cpu" else ""
    name = case.ds_config or str(TEMPLATES / f"zero{case.zero_stage}{offload}.json")
    path = local_path(name)
    if path is None:
        known = ", ".join(sorted(p.name for p in TEMPLATES.glob("*.json")))
        raise SpecError(f"case {case.id!r}: ds_config: no file {name!r}; templates: {known}")
    return path


def resolve(case: Case, world_size: int) -> dict[str, Any]:
    """Fill a template with the case's values.

    Args:
        case: a case of engine deepspeed.
        world_size: ranks over all nodes.

    Returns:
        A config that holds no `auto` any more; stored beside the result as it is.

    Raises:
        SpecError: the template is unreadable, sets a field of the case itself, or leaves an `auto`.
    """
    path = template_path(case)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError(f"{path}: not valid JSON: {error}") from None
    for key, value in _values(case, world_size).items():
        present = _get(config, key)
        if present not in (None, AUTO, value):
            raise SpecError(f'{path}: {key} is {present!r}, but the case says {value!r}; write "auto" there')
        _set(config, key, value)
    for key, value in case.ds_overrides.items():
        if key in _values(case, world_size):
            raise SpecError(f"case {case.id!r}: ds_overrides: {key} follows from the case's own fields")
        _set(config, key, value)
    left = [key for key in _flat(config) if _get(config, key) == AUTO]
    if left:
        raise SpecError(f'{path}: {left[0]}: "auto" has no meaning here; write the value')
    return config


def _values(case: Case, world_size: int) -> dict[str, Any]:
    """What the case decides. `train_batch_size` counts data-parallel ranks only."""
    values = {
        "train_batch_size": case.global_batch_size,
        "train_micro_batch_size_per_gpu": case.micro_batch_size,
        "gradient_accumulation_steps": case.accumulation_steps(world_size),
        "gradient_clipping": case.max_grad_norm,
        "bf16.enabled": case.precision == "bf16",
        "fp16.enabled": case.precision == "fp16",
        "zero_optimization.stage": case.zero_stage,
    }
    if case.pp_size > 1:
        # Splitting activations over tensor-parallel ranks remembers the shape of the first micro-batch.
        values |= {"pipeline.pipe_partitioned": False, "pipeline.grad_partitioned": False}
    if case.offload_optimizer == "cpu":
        values["zero_optimization.offload_optimizer.device"] = "cpu"
    return values


def _flat(config: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in config.items():
        keys += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return keys


def _get(config: dict[str, Any], dotted: str) -> Any:
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _set(config: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        config = config.setdefault(part, {})
    config[last] = value
