"""peft's method_comparison: one JSON file an experiment (`MetaMathQA/results/*.json`).

Fields and their meaning: huggingface/peft, method_comparison/MetaMathQA/run.py and utils.py. One process on one GPU
trains without an engine; `accelerator_memory_max` (`cuda_memory_max` until 2025) is the reserved peak of the whole
process; `train time` of a metrics entry sums the steps since the entry before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

GSM8K_TEST_ROWS = 1319
"""Rows of the test split of openai/gsm8k (main), over which `test accuracy` is a share."""
WARMUP_RATIO = 0.1
"""`WARMUP_STEP_RATIO` of utils.py, under the cosine schedule."""
TORCH_ADAMW_DECAY = 0.01
"""Default of torch.optim.AdamW, in force where `optimizer_kwargs` names none."""
_PRECISION = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_NOT_THERE = "not in the source"


def entries(raw: dict[str, Any]) -> Iterator[str | tuple[dict[str, Any], dict[str, Any]]]:
    """The record of one file and its environment, or why it is left out."""
    info, config = raw["run_info"], raw["run_info"]["train_config"]
    peft = info.get("peft_config")
    name = info["experiment_name"]
    if peft is not None and peft.get("peft_type") != "LORA":
        yield f"{name}: {peft.get('peft_type')} is neither full fine-tuning nor LoRA"
    elif config["dtype"] not in _PRECISION:
        yield f"{name}: dtype {config['dtype']} is not among {', '.join(_PRECISION)}"
    else:
        yield _fields(raw, info, config, peft), _environment(raw["meta_info"])


def _fields(raw: dict[str, Any], info: dict[str, Any], config: dict[str, Any], peft: Any) -> dict[str, Any]:
    train = raw["train_info"]
    ok = train["status"] == "success"
    error = info.get("error_msg") or ""
    missing = {
        "model": _NOT_THERE, "data": "the source gives the data sets' revisions only", "grad_norms": _NOT_THERE,
        "plan": _NOT_THERE,
        "losses": "the source gives means over many steps only", "outside_steps_s": _NOT_THERE,
        "case.optimizer": f"the source ran {config['optimizer_type']} with torch's default kernel",
    }  # fmt: skip
    fields = {
        "case": _case(raw, info, config, peft),
        "status": "ok" if ok else "oom" if "out of memory" in error.lower() else "crashed",
        "reason": None if ok else error or f"the source says {train['status']}",
        "world_size": 1, "mesh": {"dp": 1, "tp": 1, "pp": 1, "sp": 1}, "accumulation_steps": 1,
        "started_at": info["created_at"], "wall_s": info["total_time"], "outside_steps_s": None,
        "remarks": _remarks(raw, config, peft), "model": None, "data": None, "losses": [], "grad_norms": [],
        "parameters": _parameters(train, peft, missing), "timed": _timed(train, missing) if ok else None,
        "evaluation": _evaluation(train, missing) if ok else {},
        "checkpoint": _checkpoint(train, peft, missing) if ok else None, "missing": missing,
    }  # fmt: skip
    fields["phases_s"] = {"timed": fields["timed"]["window_s"]} if fields["timed"] else {}
    fields["ranks"] = [_rank(train, fields["phases_s"])]
    return fields


def _case(raw: dict[str, Any], info: dict[str, Any], config: dict[str, Any], peft: Any) -> dict[str, Any]:
    adam, batch = config["optimizer_kwargs"], config["batch_size"]
    cosine = config.get("lr_scheduler") == "cosine"
    data = raw["meta_info"].get("dataset_info", {}).get("metamath", {}).get("sha")
    targets = peft.get("target_modules") if peft else None
    lora = {
        "lora_rank": peft["r"], "lora_alpha": peft["lora_alpha"], "lora_dropout": peft["lora_dropout"],
        "target_modules": sorted(targets) if isinstance(targets, list) else targets,
    } if peft else {}  # fmt: skip
    return {
        "id": info["experiment_name"].replace("/", "--"), "model": config["model_id"],
        "attention": config.get("attn_implementation") or "sdpa",
        "gradient_checkpointing": config.get("use_gc", False), "precision": _PRECISION[config["dtype"]],
        "tuning": "lora" if peft else "full", **lora, "engine": "ddp", "optimizer": "adamw",
        "learning_rate": adam["lr"], "lr_schedule": "cosine" if cosine else "constant",
        "lr_warmup_steps": int(WARMUP_RATIO * config["max_steps"]) if cosine else 0,
        "weight_decay": adam.get("weight_decay", TORCH_ADAMW_DECAY), "max_grad_norm": config["grad_norm_clip"],
        "seed": config["seed"], "steps": config["max_steps"], "warmup_steps": 0, "global_batch_size": batch,
        "micro_batch_size": batch, "data": "meta-math/MetaMathQA" + (f"@{data[:12]}" if data else ""),
        "seq_len": config["max_seq_length"], "eval_samples": GSM8K_TEST_ROWS,
        "eval_batch_size": config["batch_size_eval"], "memory_steps": 0,
    }  # fmt: skip


def _remarks(raw: dict[str, Any], config: dict[str, Any], peft: Any) -> list[str]:
    remarks = [
        "Imported from peft's method_comparison: one GPU, no engine (`ddp` stands in), warm-up steps counted.",
        "The reserved peak spans the whole process, evaluation included.",
        f"Optimizer: {config['optimizer_type']}.",
    ]
    variants = [key for key in ("use_dora", "use_rslora") if peft and peft.get(key)]
    if peft and peft.get("init_lora_weights") not in (None, True):
        variants.append(f"init_lora_weights={peft['init_lora_weights']}")
    if variants:
        remarks.append(f"LoRA variant: {', '.join(variants)}.")
    sha = raw["meta_info"].get("model_info", {}).get("sha")
    return remarks + ([f"Model revision {sha}."] if sha else [])


def _parameters(train: dict[str, Any], peft: Any, missing: dict[str, str]) -> dict[str, Any] | None:
    total, trainable = train.get("num_total_params"), train.get("num_trainable_params")
    if total is None or trainable is None:
        missing["parameters"] = _NOT_THERE
        return None
    missing["parameters.embedding"] = _NOT_THERE
    return {"total": total, "trainable": trainable, "base": total - trainable if peft else total, "embedding": 0}


def _timed(train: dict[str, Any], missing: dict[str, str]) -> dict[str, Any] | None:
    intervals = [entry for entry in train["metrics"] if "train time" in entry]
    if not intervals:
        missing["timed"] = "the source has no training times"
        return None
    ends = [0, *(entry["step"] for entry in intervals)]
    lengths = [end - start for start, end in itertools.pairwise(ends)]
    totals = [entry["train total tokens"] for entry in train["metrics"] if "train total tokens" in entry]
    tokens = totals[-1] if totals else round(sum(e["tokens / sec"] * e["train time"] for e in intervals))
    for name in ("padded_tokens", "loss_tokens", "data_wait_s"):
        missing[f"timed.{name}"] = _NOT_THERE
    missing["timed.step_s (single steps)"] = f"means over {lengths[0]} steps each"
    return {
        "steps": ends[-1], "window_s": sum(entry["train time"] for entry in intervals),
        "step_s": [e["train time"] / n for e, n in zip(intervals, lengths, strict=True) if n], "data_wait_s": 0.0,
        "samples": intervals[-1]["train samples"], "tokens": tokens, "padded_tokens": 0, "loss_tokens": 0,
    }  # fmt: skip


def _evaluation(train: dict[str, Any], missing: dict[str, str]) -> dict[str, Any]:
    shares = [entry["test accuracy"] for entry in train["metrics"] if "test accuracy" in entry]
    right = shares[-1] * GSM8K_TEST_ROWS if shares else None
    if right is None or abs(right - round(right)) > 1e-3:
        missing["evaluation"] = f"no test accuracy over {GSM8K_TEST_ROWS} rows in the source"
        return {}
    for name in ("loss_sum", "loss_tokens", "correct_tokens"):
        missing[f"evaluation.after.{name}"] = _NOT_THERE
    sums = {"samples": GSM8K_TEST_ROWS, "loss_sum": 0.0, "loss_tokens": 0, "correct_tokens": 0}
    return {"after": sums | {"exact_samples": round(right)}}


def _checkpoint(train: dict[str, Any], peft: Any, missing: dict[str, str]) -> dict[str, Any] | None:
    if peft is None:
        missing["checkpoint"] = "the source does not save the full model, it estimates the size"
        return None
    for name in ("export_s", "save_s", "load_s", "native_bytes"):
        missing[f"checkpoint.{name}"] = _NOT_THERE
    return {"export_bytes": train["file_size"], "export_s": 0.0, "native_bytes": {}, "save_s": 0.0, "load_s": None}


def _rank(train: dict[str, Any], phases: dict[str, float]) -> dict[str, Any]:
    reserved = train.get("accelerator_memory_max", train.get("cuda_memory_max"))
    meters = {"allocated_peak_bytes": None, "device_used_bytes": None, "resident_peak_bytes": None}
    return {
        "rank": 0, "host": "unknown", "device": "cuda:0", "mesh": {"dp": 0, "tp": 0, "pp": 0, "sp": 0},
        "phases_s": phases, "memory": {"timed": meters | {"reserved_peak_bytes": reserved}},
    }  # fmt: skip


def _environment(meta: dict[str, Any]) -> dict[str, Any]:
    """Versions by name, commits as `<name>-commit`, and `device`."""
    found: dict[str, Any] = {}
    for key, value in meta.get("package_info", {}).items():
        name, _, kind = key.partition("-")
        found[name if kind == "version" else f"{name}-commit"] = value
    system = meta.get("system_info", {})
    return found | {"device": system.get("gpu") or system.get("accelerator")}
