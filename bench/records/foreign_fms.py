"""fms-acceleration's benchmark tables: one CSV row a scenario (`scripts/benchmarks/refs/*.csv`).

Meaning of the columns: foundation-model-stack/fms-acceleration, scripts/benchmarks. `train_tokens_per_second` is per
GPU, samples and steps per second are global; `nvidia_mem_reserved` is MiB by nvidia-smi, a mean over the GPUs. Older
tables lack the prefix `mem_`. A row without training numbers is a scenario that did not finish.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NEEDED = {"framework_config", "model_name_or_path", "num_gpus", "per_device_train_batch_size", "train_runtime"}
"""Columns without which a table is no such table."""
_NOT_THERE = "not in the source"
_STARTED = "1970-01-01T00:00:00Z"
Row = Mapping[str, str]


def entries(rows: Sequence[Row]) -> Iterator[str | tuple[dict[str, Any], dict[str, Any]]]:
    """Records of the rows, in their order; the source names neither versions nor device."""
    for row in rows:
        yield _fields(row), {}


def _fields(row: Row) -> dict[str, Any]:
    gpus, micro = int(float(row["num_gpus"])), int(float(row["per_device_train_batch_size"]))
    seconds, rate = _number(row, "train_runtime"), _number(row, "train_samples_per_second")
    ok = bool(seconds and rate)
    samples = round(rate * seconds) if rate and seconds else 0
    accumulation = _accumulation(row, gpus * micro)
    batch = gpus * micro * accumulation
    timed = _timed(row, gpus, samples, batch) if ok else None
    error = row.get("error_messages") or ""
    missing = _missing()
    if not ok:
        missing["timed"] = "the source has no training numbers for this row"
    return {
        "case": _case(row, gpus, micro, batch, timed), "status": _status(ok, error),
        "reason": None if ok else error or missing["timed"],
        "world_size": gpus, "mesh": {"dp": gpus, "tp": 1, "pp": 1, "sp": 1}, "accumulation_steps": accumulation,
        "started_at": _STARTED, "wall_s": seconds or 0.0, "phases_s": {"timed": seconds} if seconds else {},
        "outside_steps_s": None, "remarks": _remarks(row, gpus), "model": None, "parameters": None, "data": None,
        "timed": timed, "losses": [], "grad_norms": [], "evaluation": {}, "checkpoint": None, "ranks": [_rank(row)],
        "missing": missing,
    }  # fmt: skip


def _missing() -> dict[str, str]:
    groups = (
        "model", "parameters", "data", "plan", "grad_norms", "evaluation", "checkpoint", "outside_steps_s",
        "started_at", "timed.data_wait_s", "timed.padded_tokens", "timed.loss_tokens", "case.data", "case.optimizer",
    )  # fmt: skip
    return dict.fromkeys(groups, _NOT_THERE) | {
        "losses": "the source gives the mean over the run only",
        "wall_s": "the source times training only",
        "timed.step_s (single steps)": "the mean over the run",
        "case.steps": "worked out from the rates", "case.seq_len": "mean tokens of a sample, worked out from the rates",
    }  # fmt: skip


def _status(ok: bool, error: str) -> str:
    if ok:
        return "ok"
    return "oom" if "out of memory" in error.lower() else "crashed"


def _accumulation(row: Row, per_pass: int) -> int:
    """Stated, or from samples per step; 1 where there is neither."""
    stated = _number(row, "gradient_accumulation_steps")
    samples, steps = _number(row, "train_samples_per_second"), _number(row, "train_steps_per_second")
    if stated:
        return int(stated)
    return max(1, round(samples / steps / per_pass)) if samples and steps else 1


def _timed(row: Row, gpus: int, samples: int, batch: int) -> dict[str, Any]:
    seconds, rate = float(row["train_runtime"]), _number(row, "train_tokens_per_second")
    steps = max(1, round(samples / batch))
    return {
        "steps": steps, "window_s": seconds, "step_s": [seconds / steps], "data_wait_s": 0.0, "samples": samples,
        "tokens": round(rate * seconds * gpus) if rate else 0, "padded_tokens": 0, "loss_tokens": 0,
    }  # fmt: skip


def _case(row: Row, gpus: int, micro: int, batch: int, timed: dict[str, Any] | None) -> dict[str, Any]:
    method = row.get("peft_method") or ""
    rank, alpha = _number(row, "r"), _number(row, "lora_alpha")
    modules = re.split(r"[\s,]+", row.get("target_modules") or "")
    lora = {
        "lora_rank": int(rank) if rank else None, "lora_alpha": int(alpha) if alpha else None,
        "lora_dropout": _number(row, "lora_dropout"), "target_modules": [m for m in modules if m] or None,
    } if method else {}  # fmt: skip
    half = (row.get("fp16") or "").lower() == "true" or row.get("torch_dtype") == "float16"
    model = row["model_name_or_path"].rsplit("/", 1)[-1]
    return {
        "id": f"{row['framework_config']}-{method or 'full'}-{model}-gpu{gpus}-b{micro}",
        "model": row["model_name_or_path"], "precision": "fp16" if half else "bf16",
        "tuning": "lora" if method else "full", **lora, "engine": "ddp", "optimizer": "adamw",
        "learning_rate": _number(row, "learning_rate") or 2e-5, "steps": timed["steps"] if timed else 1,
        "warmup_steps": 0, "global_batch_size": batch, "micro_batch_size": micro, "data": "unknown",
        "seq_len": max(1, round(timed["tokens"] / timed["samples"])) if timed and timed["samples"] else 1,
        "save_checkpoint": False, "memory_steps": 0,
    }  # fmt: skip


def _remarks(row: Row, gpus: int) -> list[str]:
    remarks = ["Imported from an fms-acceleration benchmark table: warm-up steps are counted, memory is one number."]
    if gpus > 1:
        remarks.append("The source shards over its GPUs with FSDP, which this schema does not name; `ddp` stands in.")
    if re.search(r"bnb|gptq|nf4", row["framework_config"]):
        remarks.append(f"Quantised base weights ({row['framework_config']}), which this schema has no field for.")
    if not _number(row, "learning_rate"):
        remarks.append("The learning rate is not in the source; its default stands in.")
    return remarks


def _rank(row: Row) -> dict[str, Any]:
    allocated = _first(row, "mem_peak_torch_mem_alloc_in_bytes", "peak_torch_mem_alloc_in_bytes")
    device = _first(row, "mem_nvidia_mem_reserved", "nvidia_mem_reserved")
    meters = {
        "allocated_peak_bytes": round(allocated) if allocated else None, "reserved_peak_bytes": None,
        "device_used_bytes": round(device * 2**20) if device else None, "resident_peak_bytes": None,
    }  # fmt: skip
    return {
        "rank": 0, "host": "unknown", "device": "cuda:0", "mesh": {"dp": 0, "tp": 0, "pp": 0, "sp": 0}, "phases_s": {},
        "memory": {"timed": meters},
    }  # fmt: skip


def _first(row: Row, *names: str) -> float | None:
    return next((value for name in names if (value := _number(row, name)) is not None), None)


def _number(row: Row, name: str) -> float | None:
    """A cell as a number; None where it is empty, absent or not finite."""
    try:
        value = float(row.get(name) or "nan")
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
