"""Which cases of a run have the configuration that a claim is about, and what they measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.errors import SpecError
from bench.planner.claims import Claim
from bench.planner.job import attention_kernel, has_masters
from bench.planner.verdicts import Verdict
from bench.records.schema import CaseRecord, RunRecord
from bench.spec.hardware import gpu
from bench.spec.models import ALL_LINEAR

Measures = Mapping[str, Callable[[CaseRecord], float | None]]
"""Quantity of a claim → its measured value, in bytes, counts or plain numbers."""
_UNSPLIT = {"tp": 1, "pp": 1, "sp": 1, "offload": "none"}
"""Where a document names no other layout it means this one, as the formulas do."""
_BY_LAYOUT = ("peak_memory", "samples_per_s")


def with_measurements(
    verdicts: Sequence[Verdict], run: RunRecord, cases: Sequence[CaseRecord], measures: Measures
) -> list[Verdict]:
    """Add what a run measured for claims about one of its configurations, or why there is nothing.

    Args:
        verdicts: the verdicts.
        run: where it ran.
        cases: its cases; those that did not end ok count for nothing.
        measures: what a run measures.
    """
    done = [case for case in cases if case.status == "ok"]
    return [_with_measurement(verdict, run, done, measures.get(verdict.claim.quantity)) for verdict in verdicts]


def _with_measurement(
    verdict: Verdict, run: RunRecord, done: Sequence[CaseRecord], measure: Callable[[CaseRecord], float | None] | None
) -> Verdict:
    if measure is None:
        return replace(verdict, unmeasured="quantity")
    matching = [case for case in done if _same(verdict.claim, case, run.environment.device)]
    values = {label(case): value for case in matching if (value := measure(case)) is not None}
    if not values:
        return replace(verdict, unmeasured="value" if matching else "case")
    span = (min(values.values()), max(values.values()))
    return replace(verdict, measured=span, measured_by=tuple(values), unmeasured=None)


def label(record: CaseRecord) -> str:
    """Case id with the number of the launch, where it is not the first."""
    return record.case.id if record.repeat == 1 else f"{record.case.id} #{record.repeat}"


def _same(claim: Claim, record: CaseRecord, device: str) -> bool:
    """Whether every field that the claim states is the case's; fields it leaves open match anything."""
    case = record.case
    if case.model_overrides or _bare(claim.fields.get("model", "")) != _bare(case.model):
        return False
    wanted = {**(_UNSPLIT if claim.quantity in _BY_LAYOUT else {}), **claim.fields}
    if "gpu" in wanted:
        wanted["gpu"] = _gpu_name(wanted["gpu"])
    if "target_modules" in wanted:
        wanted["target_modules"] = _modules(wanted["target_modules"].split())
    own = _configuration(record, device)
    return all(own[name] == value for name, value in wanted.items() if name in own)


def _configuration(record: CaseRecord, device: str) -> dict[str, Any]:
    """A case in the words of claims. Shorter samples than `seq_len` say nothing about that length."""
    case = record.case
    return {
        "tuning": case.tuning, "precision": case.precision, "micro_batch": case.micro_batch_size,
        "seq_len": case.seq_len if case.fill else None, "zero_stage": case.zero_stage or 0,
        "gpus": record.world_size, "tp": case.tp_size, "pp": case.pp_size, "sp": case.sp_size,
        "offload": case.offload_optimizer, "lora_rank": case.lora_rank, "gpu": _gpu_name(device) or device,
        "target_modules": _modules(case.target_modules or ()), "attention": attention_kernel(case),
        "gradient_checkpointing": "yes" if case.gradient_checkpointing else "no",
        "optimizer": "adamw", "masters": "yes" if has_masters(case) else "no",
    }  # fmt: skip


def _bare(model: str) -> str:
    """Name without owner or folder; instruction-tuned models have their base's shape."""
    return Path(model).name.lower().removesuffix("-instruct")


def _gpu_name(name: str) -> str | None:
    try:
        return gpu(name).name
    except SpecError:
        return None


def _modules(names: Sequence[str]) -> frozenset[str]:
    return frozenset(ALL_LINEAR if tuple(names) == ("all-linear",) else names)
