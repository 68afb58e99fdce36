"""Saving under every engine: Hugging Face weights or a PEFT adapter, and the engine's resume checkpoint."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from bench.records.schema import CheckpointFacts
from bench.spec.case import Case
from bench.worker.engines.protocol import Engine
from bench.worker.model import whole
from bench.worker.parallel.build import WholeParameter
from bench.worker.parallel.gather import hand_over, receive

SHARD_BYTES = 4 * 10**9
"""Largest safetensors file: what rank 0 holds of the gathered weights at a time, in host memory."""
_NATIVE_ROLES = (("optimizer", re.compile(r"optim")), ("weights", re.compile(r"model_states|weights")))


class DiskTooSmall(RuntimeError):
    """The checkpoint would not fit on the disk; nothing was written."""


def save_and_load(engine: Engine, case: Case, tokenizer: Any, folder: Path, phase: Any) -> CheckpointFacts:
    """Export, save and load back, measuring each.

    Args:
        engine: the trained engine.
        case: the case.
        tokenizer: saved beside the weights.
        folder: a folder of this case alone; `folder/export` is left for the proof that it loads.
        phase: `Meters.phase`.

    Raises:
        DiskTooSmall: on every rank, before anything is written.
    """
    check_disk(engine, folder)
    export, native = folder / "export", folder / "native"
    with phase("export"):
        export_bytes, export_s = _timed(lambda: export_model(engine, case, tokenizer, export))
    with phase("save"):
        _, save_s = _timed(lambda: engine.save_native(native))
    sizes = _native_sizes(native)
    dist.barrier()
    with phase("load"):
        _, load_s = _timed(lambda: engine.load_native(native))
    dist.barrier()
    shutil.rmtree(native, ignore_errors=True)
    return CheckpointFacts(
        export_bytes=export_bytes, export_s=export_s, native_bytes=sizes, save_s=save_s, load_s=load_s
    )


def _timed(work: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def check_disk(engine: Engine, folder: Path) -> None:
    """Compare the free disk with what weights, fp32 masters and moments take.

    Raises:
        DiskTooSmall: on every rank, naming need and free space.
    """
    trainable = sum(p.elements for p in engine.whole if p.trainable)
    exported = sum(p.nbytes for p in engine.whole if p.trainable or engine.case.tuning == "full")
    needed = int(1.1 * (2 * exported + 12 * trainable))
    folder.mkdir(parents=True, exist_ok=True)
    free = torch.tensor(shutil.disk_usage(folder).free, dtype=torch.int64, device=engine.device.torch)
    dist.all_reduce(free, dist.ReduceOp.MIN)
    if int(free) < needed:
        raise DiskTooSmall(f"the checkpoint needs {needed / 1e9:.1f} GB of disk, {int(free) / 1e9:.1f} GB are free")


def export_model(engine: Engine, case: Case, tokenizer: Any, folder: Path) -> int:
    """Write weights (full) or adapter (lora) as ordinary files that load on one process.

    Returns:
        Bytes of the tensor files; the same on every rank.
    """
    writer = dist.get_rank() == 0
    if writer:
        folder.mkdir(parents=True, exist_ok=True)
    sizes = _export_adapter(engine, folder) if case.tuning == "lora" else _export_full(engine, folder)
    if writer and case.tuning == "full":
        engine.model.config.save_pretrained(folder)
    if writer:
        tokenizer.save_pretrained(folder)
    dist.barrier()
    return sizes


def _export_adapter(engine: Engine, folder: Path) -> int:
    """PEFT's own file: its names, less that of the one adapter. Its function leaves out other stages' layers."""
    state = {name.replace(".default.", "."): tensor for name, tensor in gather(engine, trainable_only=True)}
    if dist.get_rank() == 0:
        save_file(_contiguous(state), folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = engine.model.peft_config["default"]
        config.inference_mode = True
        config.save_pretrained(folder)
        config.inference_mode = False
    return _agree((folder / "adapter_model.safetensors").stat().st_size if dist.get_rank() == 0 else 0, engine)


def _export_full(engine: Engine, folder: Path) -> int:
    plan = shard_plan(engine.whole)
    index: dict[str, str] = {}
    total, pending, shard = 0, {}, 0
    for name, tensor in gather(engine, trainable_only=False):
        pending[name] = tensor
        if set(pending) == set(plan[shard]):
            if dist.get_rank() == 0:
                file = f"model-{shard + 1:05d}-of-{len(plan):05d}.safetensors" if len(plan) > 1 else "model.safetensors"
                save_file(_contiguous(pending), folder / file, metadata={"format": "pt"})
                index.update(dict.fromkeys(pending, file))
                total += (folder / file).stat().st_size
            pending, shard = {}, shard + 1
    if dist.get_rank() == 0 and len(plan) > 1:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
        (folder / "model.safetensors.index.json").write_text(text)
    return _agree(total, engine)


def shard_plan(whole: Sequence[WholeParameter]) -> list[list[str]]:
    """Names of the parameters in each file, in order, each file at most SHARD_BYTES (or one parameter)."""
    plan: list[list[str]] = [[]]
    size = 0
    for parameter in whole:
        bytes_here = parameter.nbytes
        if plan[-1] and size + bytes_here > SHARD_BYTES:
            plan.append([])
            size = 0
        plan[-1].append(parameter.name)
        size += bytes_here
    return plan


def gather(engine: Engine, trainable_only: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole parameters one at a time, on the host of rank 0 (empty tensors elsewhere); all ranks must iterate.

    PEFT's and transformers' own saves write empty tensors where ZeRO-3 has sharded the parameters, and
    DeepSpeed's write one tensor-parallel shard.
    """
    here = dict(engine.model.named_parameters())
    for entry in engine.whole:
        if trainable_only and not entry.trainable:
            continue
        if entry.stage != engine.mesh.coordinates["pp"]:
            yield entry.name, receive(entry, engine.mesh, engine.device.torch)
            continue
        with whole(here[entry.name]):
            yield entry.name, hand_over(entry, here[entry.name], engine.mesh)


def _contiguous(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _agree(size: int, engine: Engine) -> int:
    """Rank 0's number on every rank."""
    value = torch.tensor(size, dtype=torch.int64, device=engine.device.torch)
    dist.broadcast(value, 0)
    return int(value)


def _native_sizes(folder: Path) -> dict[str, int]:
    """Bytes by role over all nodes; file names are unique over ranks, so a shared disk counts once."""
    local = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    everywhere: list[dict[str, int]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everywhere, local)
    files = {name: size for part in everywhere for name, size in part.items()}
    sizes: dict[str, int] = {}
    for name, size in files.items():
        role = next((role for role, pattern in _NATIVE_ROLES if pattern.search(name)), "other")
        sizes[role] = sizes.get(role, 0) + size
    if "optimizer" not in sizes:  # ZeRO-0 writes both into one file
        sizes["weights_and_optimizer"] = sizes.pop("weights", 0)
    return sizes
