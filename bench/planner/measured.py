"""Public measurements as jobs: rows of a CSV in the format of `measured.csv`, or why a row cannot be expressed."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from bench.errors import SpecError
from bench.planner.job import FULL, HALF, Job, Precision
from bench.planner.states import GPTQ4_BYTES, NF4_BYTES, NF4_DOUBLE_BYTES
from bench.spec.hardware import Gpu, gpu
from bench.spec.models import shape_of

REQUIRED = ("id", "source", "model", "method", "gpu", "n_gpus", "parallel", "precision", "micro_batch", "seq_len",
            "grad_ckpt", "attention", "optimizer", "peak_mem_gib", "mem_kind", "notes")  # fmt: skip
_QUANTISED = {
    "qlora-bnb-nf4": NF4_DOUBLE_BYTES, "qlora-gptq": GPTQ4_BYTES, "qlora-bnb.nf4": NF4_BYTES,
    "qlora-bnb.nf4-dq": NF4_DOUBLE_BYTES, "qlora-int4(gptq)": GPTQ4_BYTES, "qlora-int8(gptq)": 1 + HALF / 128,
    "qlora-int4(bnb)": NF4_DOUBLE_BYTES,
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One row, with the job it describes or the reason why there is none."""

    id: str
    source: str
    method: str
    n_gpus: int
    model: str
    meter: str
    """`allocated`, `reserved`, `device`, `oom`, or `none`."""
    peak_bytes: float | None
    tokens_per_s: float | None
    """Computed positions over all GPUs, where the row states it at its sequence length."""
    gpu: Gpu | None
    job: Job | None
    reason: str | None
    """Why the row cannot be expressed."""


def read_measured(path: Path) -> list[Measured]:
    """Read a CSV.

    Raises:
        SpecError: the file cannot be read or lacks a column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {error}") from None
    if not rows:
        raise SpecError(f"{path}: no rows")
    missing = [name for name in REQUIRED if name not in rows[0]]
    if missing:
        raise SpecError(f"{path}: column {missing[0]} is missing; needed: {', '.join(REQUIRED)}")
    return [_measured(row) for row in rows]


def _measured(row: dict[str, str]) -> Measured:
    device, job, reason = None, None, None
    try:
        device = gpu(_GPU_NAMES.get(row["gpu"], row["gpu"]))
        job = _job(row)
    except SpecError as error:
        reason = str(error).partition(";")[0]
    except _Inexpressible as error:
        reason = str(error)
    n_gpus = int(row["n_gpus"])
    peak = float(row["peak_mem_gib"]) * 2**30 if row["peak_mem_gib"] else None
    rate = None
    if row.get("throughput_unit") == "tok/s/gpu" and row["throughput"]:
        rate = float(row["throughput"]) * n_gpus
    return Measured(
        row["id"], re.sub(r"(:| row|\().*", "", row["source"]), row["method"], n_gpus, row["model"],
        _meter(row["mem_kind"]), peak, rate, device, job, reason,
    )  # fmt: skip


class _Inexpressible(Exception):
    """The formulas have no field for what a row describes."""


_GPU_NAMES = {"A100-80GB": "a100-80gb", "a100_80gb": "a100-80gb", "a100_40gb": "a100-40gb", "h100_80gb": "h100-80gb"}
"""Spellings of the public tables that have one meaning there: their machines are NVLink nodes."""


def _meter(kind: str) -> str:
    kinds = {"max_memory_allocated": "allocated", "max_memory_reserved": "reserved", "nvidia": "device", "OOM": "oom"}
    return next((meter for word, meter in kinds.items() if word in kind), "none")


def _job(row: dict[str, str]) -> Job:
    n_gpus, method = int(row["n_gpus"]), row["method"]
    sharded = row["parallel"].startswith("FSDP")
    _refuse(row, sharded)
    seq = re.fullmatch(r"(?:<=)?(\d+)", row["seq_len"])
    if seq is None:
        raise _Inexpressible(f"seq_len {row['seq_len']!r} is no number")
    lora = not method.startswith("full")
    litgpt = "litgpt" in row["source"]
    targets, rank = _adapters(row) if lora else ((), 0)
    return Job(
        shape=shape_of(row["model"]), tuning="lora" if lora else "full", micro_batch=int(row["micro_batch"]),
        seq_len=int(seq.group(1)), engine="torch", zero_stage=3 if sharded and n_gpus > 1 else 0, world_size=n_gpus,
        gradient_checkpointing=row["grad_ckpt"] == "yes",
        attention="eager" if row["attention"] == "eager" else "flash",
        loss=_loss(row), optimizer="foreach", precision=_precision(row, lora, sharded), lora_rank=rank,
        targets=targets, adapter_copy=_adapter_copy(row) if lora else 0,
        fused_kernels="foak" in row["notes"],
        # LitGPT's finetune/lora.py of that revision drops out 5 %, fuses q, k, v, and used bitsandbytes 0.41.
        lora_dropout=0.05 if litgpt else 0.0, fused_qkv=litgpt, frozen_inputs_kept=litgpt and method.startswith("q"),
    )  # fmt: skip


def _refuse(row: dict[str, str], sharded: bool) -> None:
    notes = row["notes"]
    checks = [
        (not sharded and row["parallel"] != "single",
         f"layout {row['parallel']!r}: the suite has no such layout"),
        (row["grad_ckpt"] not in ("yes", "no"), "checkpointing is not stated"),
        (not row["method"].startswith(("full", "lora", "qlora")), f"method {row['method']!r} is unknown"),
        (row["method"].startswith("q") and row["method"] not in _QUANTISED, f"{row['method']!r} is unknown"),
        ("FP8" in row["precision"], "FP8: the suite has no such precision"),
        ("baseline-peft-bnb" in notes and not sharded,
         "everything that is not quantised was cast to fp32 (prepare_model_for_kbit_training)"),
        (sharded and "litgpt" in row["source"],
         "FSDP sharded nothing when it peaked: each GPU held more than all weights"),
    ]  # fmt: skip
    for refused, reason in checks:
        if refused:
            raise _Inexpressible(reason)


def _adapters(row: dict[str, str]) -> tuple[tuple[str, ...], int]:
    """Target modules and rank; c_attn is the fused q, k, v of the first Qwen models."""
    text = row.get("lora_targets", "")
    if "all-linear" in text:
        targets: tuple[str, ...] = ("all-linear",)
    elif "c_attn" in text and "o_proj" not in text:
        targets = ("q_proj", "k_proj", "v_proj")
    elif text.startswith("q,v"):
        targets = ("q_proj", "v_proj")
    else:
        targets = tuple(name for name in text.split() if name.endswith("_proj"))
    rank = row.get("lora_rank", "")
    if not targets or not rank.replace(".0", "").isdigit():
        raise _Inexpressible("rank or target modules of the adapters are not stated")
    return targets, int(float(rank))


def _precision(row: dict[str, str], lora: bool, sharded: bool) -> Precision:
    """What these sources keep per parameter.

    Trainer with bf16 weights: gradients and both Adam moments in bf16, no master copy. Accelerate's FSDP with
    mixed precision holds fp32 shards. PEFT keeps adapters, their gradients and moments in fp32, except where
    the whole model was cast (LitGPT's bf16-true).
    """
    if lora:
        pure = "bf16-true" in row["precision"]
        trained = HALF if pure else FULL
        return Precision(
            weights=_QUANTISED.get(row["method"], HALF), gradients=trained, master=0, moments=2 * trained,
            adapters=trained,
        )  # fmt: skip
    if sharded and "amp" in row["precision"]:
        return Precision(weights=FULL, gradients=FULL, master=0, moments=2 * FULL)
    return Precision(master=0, moments=2 * HALF)


def _adapter_copy(row: dict[str, str]) -> int:
    if "bf16-true" in row["precision"]:
        return 0
    return HALF if "amp" in row["precision"] else FULL


def _loss(row: dict[str, str]) -> str:
    """The loss kernel that the source's configuration stands for; see `bench.planner.logits.KERNELS`."""
    notes = row["notes"]
    if "liger" in notes:
        return "fused"
    if "foak" in notes:
        # The later file was made after transformers stopped copying the shifted logits.
        return "triton" if "a100_80gb_liger" in row["source"] else "triton-shift"
    if "litgpt" in row["source"]:
        return "half-chunks"
    return "transformers-shift" if "framework_config" in notes else "upcast"
