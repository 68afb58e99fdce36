"""Synthetic records and results folders with plausible, fully determined numbers.

    record = make_record(make_case(tuning="lora"), step_s=0.2)
    folder = write_run(tmp_path / "run", make_run(["full", "lora"]), [record, …])

Every function takes fields to replace, so a test says only what it is about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from bench.records.columns import EVAL_COLUMNS, STEP_COLUMNS
from bench.records.folder import case_folder, write_record
from bench.records.memory import MemoryPass, PhaseMemory, Shards, TallyPhase
from bench.records.planned import MeterRange, PlanRecord
from bench.records.schema import (
    CaseRecord,
    CheckpointFacts,
    DataFacts,
    Environment,
    Evaluation,
    ModelDims,
    Parameters,
    RankRecord,
    RunRecord,
    Status,
    Timed,
)  # fmt: skip
from bench.spec.case import Case

MIB = 2**20
STARTED = "2025-01-02T03:04:05Z"
TOTAL, ADAPTER = 4_200_000, 110_592


def make_case(id: str | None = None, tuning: Literal["full", "lora"] = "full", **fields: Any) -> Case:
    """A small ZeRO-2 case; its id defaults to `<tuning>-z<stage>`."""
    values = {
        "model": "bench/assets/tiny", "precision": "fp32", "tuning": tuning, "zero_stage": 2, "steps": 8,
        "warmup_steps": 2, "global_batch_size": 8, "micro_batch_size": 2, "data": "bench/assets/tiny.jsonl",
        "seq_len": 128, "eval_samples": 64, "learning_rate": 1e-3 if tuning == "full" else 3e-3, **fields,
    }  # fmt: skip
    if values.get("engine") == "ddp":
        values["zero_stage"] = None
    return Case(id=id or f"{tuning}-z{values['zero_stage']}", **values)


def make_environment(gpu: bool = False, **fields: Any) -> Environment:
    """A two-core CPU machine, or one with eight 80 GB GPUs."""
    values = {
        "versions": {"python": "3.11.7", "torch": "2.13.0", "deepspeed": "0.19.8", "flash_attn": None},
        "device": "NVIDIA A100-SXM4-80GB" if gpu else "AMD EPYC 7B13",
        "device_kind": "cuda" if gpu else "cpu", "devices_per_node": 8 if gpu else 0,
        "device_memory_bytes": 85_899_345_920 if gpu else None, "driver": "550.54.15" if gpu else None,
        "topology": "GPU0\tGPU1\nX\tNV12" if gpu else None, "cpu": "AMD EPYC 7B13", "cpu_count": 2,
        "host_memory_bytes": 16 * 2**30, "threads_per_rank": 1, "platform": "Linux-6.1-x86_64",
        "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": True,
        "variables": {"OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    return Environment(**{**values, **fields})


def make_run(planned: Sequence[str], gpu: bool = False, **fields: Any) -> RunRecord:
    """A finished run of a suite `tiny` on two ranks without named headline cases."""
    values = {
        "run_id": "20250102-030405-tiny", "suite": "tiny", "suite_description": "Full and LoRA on a tiny model.",
        "suite_text": "description: tiny\n", "headline": None, "overrides": {},
        "command": ["deepspeed", "--num_gpus", "2", "bench/run.py", "--suite", "tiny"], "launcher": "deepspeed",
        "world_size": 2, "hosts": ["node0", "node0"], "hostfile": None, "planned": list(planned),
        "started_at": STARTED, "finished_at": "2025-01-02T03:14:05Z", "complete": True,
        "environment": make_environment(gpu),
    }  # fmt: skip
    return RunRecord(**{**values, **fields})


def make_rank(case: Case, rank: int, gpu: bool = False, step_s: float = 0.1, scale: float = 1.0) -> RankRecord:
    """One rank of an ok case; rank 0 is 10 % fuller than the others, `scale` multiplies every byte."""
    size = scale * (1.1 if rank == 0 else 1.0) * (1000 if gpu else 1)
    trained = 1.0 if case.tuning == "full" else ADAPTER / TOTAL
    split = {
        "weights": 16, "gradients": 16 * trained, "master_weights": 8 * trained, "optimizer_state": 16 * trained,
        "activations": 12, "logits": 3, "buckets": 1, "other": 0.25,
    }  # fmt: skip
    peak = {name: int(mib * MIB * size) for name, mib in split.items()}
    small = {name: peak[name] for name in ("weights", "master_weights", "optimizer_state")}
    phases = {
        name: TallyPhase(peak_bytes=sum(part.values()), by_category=part)
        for name, part in (("forward", peak), ("backward", small), ("step", small), ("steady", small))
    }
    total = sum(peak.values())
    meters = PhaseMemory(
        allocated_peak_bytes=total if gpu else None, reserved_peak_bytes=int(total * 1.2) if gpu else None,
        device_used_bytes=int(total * 1.2) + 500 * MIB if gpu else None, resident_peak_bytes=700 * MIB + rank * MIB,
    )  # fmt: skip
    window = step_s * (case.steps - case.warmup_steps) * 1.02
    return RankRecord(
        rank=rank, host="node0", device=f"cuda:{rank}" if gpu else "cpu", mesh={"dp": rank, "tp": 0, "pp": 0, "sp": 0},
        phases_s=_phases(case, step_s), memory=dict.fromkeys(("first_step", "warmup", "timed"), meters),
        memory_pass=MemoryPass(
            status="ok", phases=phases, peak_bytes=total, counter_peak_bytes=total if gpu else None
        ),
        shards=Shards(
            weight_elements=TOTAL, trainable_elements=int(TOTAL * trained),
            optimizer_elements=int(TOTAL * trained) // 2,
            optimizer_state_bytes=peak["optimizer_state"],
        ),
        window_s=window, outside_engine_s=window * 0.01, skipped_steps=0,
    )  # fmt: skip


def make_plan(gpu: bool = False, scale: float = 1.0, **fields: Any) -> PlanRecord:
    """A prediction that names `scale` times what `make_rank` measures for full fine-tuning, on a rank 0."""
    size = scale * 1.1 * (1000 if gpu else 1)
    split = {"weights": 16, "gradients": 16, "master_weights": 8, "optimizer_state": 16, "activations": 12.25}
    parts = {name: int(mib * MIB * size) for name, mib in (split | {"logits": 3, "buckets": 1}).items()}
    total = sum(parts.values())
    steady = TallyPhase(peak_bytes=parts["weights"], by_category={"weights": parts["weights"]})
    meters = {"allocated": 1.0, "reserved": 1.2, "device": 1.21} if gpu else {}
    values = {
        "gpu": "A100-SXM4-80GB" if gpu else None, "fits": True if gpu else None,
        "shortfall_bytes": 0 if gpu else None, "stage": 0,
        "phases": {"forward": TallyPhase(peak_bytes=total, by_category=parts), "backward": steady, "step": steady},
        "host_bytes": 0,
        "meters": {
            name: MeterRange(low=int(total * k * 0.95), expected=int(total * k), high=int(total * k * 1.05))
            for name, k in meters.items()
        } or None,
        "samples_per_s": 80.0 if gpu else None, "speed_uncertainty": 0.15 if gpu else None, "extrapolated": None,
    }  # fmt: skip
    return PlanRecord(**{**values, **fields})


def _phases(case: Case, step_s: float) -> dict[str, float]:
    return {
        "start": 1.5, "build": 0.8, "engine": 0.4, "data": 0.2, "evaluate_before": 0.9, "first_step": step_s * 3,
        "warmup": step_s * (case.warmup_steps - 1), "timed": step_s * (case.steps - case.warmup_steps) * 1.02,
        "evaluate_after": 0.9, "export": 0.3, "save": 0.5, "load": 0.4, "memory_pass": 1.2,
    }  # fmt: skip


def make_evaluation(exact: int, samples: int = 64) -> Evaluation:
    """Held-out sums in which better exact match goes with lower loss; three answer tokens a sample."""
    tokens = samples * 3
    share = exact / samples if samples else 0.0
    return Evaluation(
        samples=samples, loss_sum=tokens * (2.5 - 2 * share), loss_tokens=tokens,
        correct_tokens=int(tokens * (0.2 + 0.8 * share)), exact_samples=exact,
    )  # fmt: skip


def make_data(**fields: Any) -> DataFacts:
    """What a tiny case was fed."""
    values = {
        "source": "bench/assets/tiny.jsonl", "fingerprint": "5f" * 32, "rows": 2000, "train_rows": 1800,
        "train_samples": 64, "eval_samples": 64, "epochs": 64 / 1800, "truncated": 3, "dropped": 1,
        "length_mean": 41.5, "length_p50": 40.0, "length_p95": 77.0, "length_max": 128, "answer_tokens_mean": 3.0,
    }  # fmt: skip
    return DataFacts(**{**values, **fields})


def make_record(
    case: Case | None = None, status: Status = "ok", repeat: int = 1, world_size: int = 2, gpu: bool = False,
    step_s: float = 0.1, exact: int = 40, scale: float = 1.0, **fields: Any,
) -> CaseRecord:  # fmt: skip
    """A record of one case: complete when ok, otherwise empty with a reason.

    Args:
        case: the configuration; `make_case()` by default.
        status: how it ended.
        repeat: launch number.
        world_size: ranks.
        gpu: whether the allocator's meters are there, or only tally and resident set.
        step_s: seconds of a timed step.
        exact: right answers of 64 after training.
        scale: factor on every byte of memory.
        fields: fields of the record to replace.
    """
    case = case or make_case()
    ranks = [make_rank(case, r, gpu, step_s, scale) for r in range(world_size)]
    values: dict[str, Any] = {
        "run_id": "20250102-030405-tiny", "case": case, "repeat": repeat, "status": status, "reason": None,
        "world_size": world_size, "mesh": {"dp": world_size, "tp": 1, "pp": 1, "sp": 1},
        "accumulation_steps": case.global_batch_size // (case.micro_batch_size * world_size) or 1,
        "started_at": STARTED, "wall_s": 9.0 + step_s * case.steps, "phases_s": {}, "outside_steps_s": None,
        "remarks": [], "model": None, "parameters": None, "data": None, "timed": None, "losses": [],
        "grad_norms": [], "evaluation": {}, "checkpoint": None, "ranks": [], "missing": {},
    }  # fmt: skip
    if status == "ok":
        values |= _measured(case, ranks, step_s, exact)
    else:
        values |= {"reason": f"it ended as {status}", "missing": {"timed": f"the case ended as {status}"}}
    return CaseRecord(**{**values, **fields})


def _measured(case: Case, ranks: list[RankRecord], step_s: float, exact: int) -> dict[str, Any]:
    adapter = 0 if case.tuning == "full" else ADAPTER
    trained, timed = adapter or TOTAL, case.steps - case.warmup_steps
    losses = [2.5 * math.exp(-0.1 * step) + 0.3 for step in range(case.steps)]
    samples = case.global_batch_size * timed
    return {
        "phases_s": _phases(case, step_s), "outside_steps_s": 8.5,
        "model": ModelDims(
            architecture="Qwen2ForCausalLM", hidden=256, layers=4, heads=4, kv_heads=2, head_dim=64,
            intermediate=704, vocab=1024, tied_embeddings=True,
        ),
        "parameters": Parameters(total=TOTAL + adapter, trainable=trained, base=TOTAL, embedding=262_144),
        "data": make_data(),
        "timed": Timed(
            steps=timed, window_s=step_s * timed * 1.02, data_wait_s=step_s * timed * 0.01, samples=samples,
            step_s=[step_s * (1 + 0.01 * (step % 3)) for step in range(timed)], tokens=samples * 40,
            padded_tokens=samples * 50, loss_tokens=samples * 3,
        ),
        "losses": losses, "grad_norms": [1.0] * case.steps,
        "evaluation": {"before": make_evaluation(4), "after": make_evaluation(exact)},
        "checkpoint": CheckpointFacts(
            export_bytes=trained * 4, export_s=0.3, native_bytes={"weights": TOTAL * 4, "optimizer": trained * 8},
            save_s=0.5, load_s=0.4, reload_s=1.1, reload_loss=1.25, trained_loss=1.25, verified=True,
        ),
        "ranks": ranks,
    }  # fmt: skip


def make_steps(record: CaseRecord) -> pd.DataFrame:
    """Rows of `steps.parquet` that agree with a record's losses and step time."""
    step_s = record.timed.step_s[0] if record.timed and record.timed.step_s else 0.1
    wait, start, rows = step_s * 0.01, 0.0, []
    for step, loss in enumerate(record.losses):
        wall = step_s * (3 if step == 0 else 1)
        for rank in range(record.world_size):
            rows.append((
                rank, step, step >= record.case.warmup_steps, start, wall, wait, wall - wait,
                None if loss is None else loss * 12, 12, 4, 160, 200, 1.0, record.case.learning_rate, False,
            ))  # fmt: skip
        start += wall * 1.02
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS)).astype(STEP_COLUMNS)


def make_scores(record: CaseRecord) -> pd.DataFrame:
    """Rows of `eval.parquet` that agree with a record's number of right answers."""
    rows = [
        (moment, sample, 1.5, 3, 3 if sample < sums.exact_samples else 1, sample < sums.exact_samples)
        for moment, sums in record.evaluation.items()
        for sample in range(sums.samples)
    ]
    return pd.DataFrame(rows, columns=list(EVAL_COLUMNS)).astype(EVAL_COLUMNS)


def write_run(folder: Path, run: RunRecord, records: Iterable[CaseRecord], tables: bool = True) -> Path:
    """Write a results folder.

    Args:
        folder: made if missing.
        run: `run.json`.
        records: one `case.json` each.
        tables: also write `steps.parquet` and `eval.parquet` of cases that trained.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder / "run.json", run)
    for record in records:
        where = case_folder(folder, record.case.id, record.repeat)
        where.mkdir(parents=True, exist_ok=True)
        write_record(where / "case.json", record)
        if tables and record.losses:
            make_steps(record).to_parquet(where / "steps.parquet", index=False)
        if tables and record.evaluation:
            make_scores(record).to_parquet(where / "eval.parquet", index=False)
    return folder
