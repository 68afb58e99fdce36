"""From the files of every rank to one case record; works with whatever a failed case left behind."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import RecordError
from bench.records.folder import case_folder, write_atomic, write_record
from bench.records.planned import PlanRecord
from bench.records.schema import CaseRecord, CheckpointFacts, Evaluation, RankRecord, Status, Timed
from bench.spec.case import Case

TRAINING_PHASES = ("first_step", "warmup", "timed")


@dataclass(frozen=True)
class CaseEnd:
    """How a case ended, as its supervisors saw it."""

    run_id: str
    case: Case
    repeat: int
    status: Status
    reason: str | None
    failing_rank: int | None
    log_tail: str | None
    world_size: int
    started_at: str
    wall_s: float
    remarks: list[str]
    plan: PlanRecord | None = None
    """What was predicted for the case."""
    unplanned: dict[str, str] = field(default_factory=dict)
    """Why parts of the prediction are null, by the names of `CaseRecord.missing`."""


def merge_case(end: CaseEnd, files: Path | None) -> tuple[CaseRecord, pd.DataFrame, pd.DataFrame]:
    """Combine what the ranks measured.

    Args:
        end: how the case ended.
        files: folder with `rank<r>/rank.json`, `steps.parquet` …; None where nothing was started.

    Returns:
        The record, all ranks' steps, and all ranks' held-out scores.

    Raises:
        RecordError: ranks were fed different data: their numbers cannot be one result.
    """
    folders = _rank_folders(files)
    ranks = [RankRecord.model_validate_json(p.read_text()) for f in folders if (p := f / "rank.json").is_file()]
    facts = [json.loads(p.read_text()) for f in folders if (p := f / "facts.json").is_file()]
    if len({fact["data"]["fingerprint"] for fact in facts if fact.get("data")}) > 1:
        raise RecordError(f"case {end.case.id}: ranks were fed different data; is the file the same on every node?")
    steps = _table(folders, "steps.parquet")
    scores = _table(folders, "eval.parquet")
    complete = len(ranks) == end.world_size
    timed = _timed(ranks, steps) if complete else None
    phases = {name: max(r.phases_s.get(name, 0.0) for r in ranks) for r in ranks[:1] for name in r.phases_s}
    first = facts[0] if facts else {}
    record = CaseRecord(
        run_id=end.run_id, case=end.case, repeat=end.repeat, status=end.status, reason=end.reason,
        failing_rank=end.failing_rank, log_tail=end.log_tail, world_size=end.world_size,
        mesh=_mesh(end), accumulation_steps=_accumulation(end), started_at=end.started_at, wall_s=end.wall_s,
        phases_s=phases, outside_steps_s=_outside(end, phases) if timed else None,
        remarks=end.remarks + _seen(end.case, ranks),
        model=first.get("model"), parameters=first.get("parameters"), data=first.get("data"), timed=timed,
        losses=_losses(steps) if complete else [], grad_norms=_grad_norms(steps),
        evaluation=_evaluations(scores, first), checkpoint=_checkpoint(facts), ranks=ranks, plan=end.plan,
        missing={},
    )  # fmt: skip
    record.missing = _missing(record, first) | end.unplanned
    return record, steps, scores


def write_case(run: Path, record: CaseRecord, steps: pd.DataFrame, scores: pd.DataFrame, files: Path | None) -> None:
    """Write a case's folder; case.json comes last, so that its presence means the folder is whole."""
    folder = case_folder(run, record.case.id, record.repeat)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank_folder in _rank_folders(files):
        log = rank_folder / "worker.log"
        if log.is_file():
            shutil.copyfile(log, folder / f"{rank_folder.name}.log")
        config = rank_folder / "ds_config.json"
        if config.is_file() and not (folder / "ds_config.json").exists():
            write_atomic(folder / "ds_config.json", config.read_bytes())
    for name, table in (("steps", steps), ("eval", scores)):
        if len(table):
            table.to_parquet(folder / f"{name}.parquet", index=False)
    write_record(folder / "case.json", record)


def add_verification(record: CaseRecord, facts: dict[str, Any] | None, reason: str | None, tolerance: float) -> None:
    """Judge the proof that an export loads.

    Args:
        record: its checkpoint is completed in place.
        facts: `verify.json` of the fresh process: reload_s, elements, loss_sum, loss_tokens; None if it failed.
        reason: why it failed.
        tolerance: accepted relative difference of the two losses.
    """
    checkpoint, counts = record.checkpoint, record.parameters
    if checkpoint is None or counts is None:
        return
    if facts is None:
        checkpoint.verified, checkpoint.reason = False, reason or "the fresh process gave no result"
        return
    expected = counts.total if record.case.tuning == "full" else counts.trainable
    checkpoint.reload_s = facts["reload_s"]
    checkpoint.reload_loss = facts["loss_sum"] / facts["loss_tokens"]
    trained = checkpoint.trained_loss
    same = trained is not None and math.isclose(checkpoint.reload_loss, trained, rel_tol=tolerance)
    checkpoint.verified = same and facts["elements"] == expected
    if facts["elements"] != expected:
        checkpoint.reason = f"the export holds {facts['elements']} elements, {expected} were trained or loaded"
    elif not same:
        checkpoint.reason = f"held-out loss {checkpoint.reload_loss} after reloading, {trained} before saving"


def _rank_folders(files: Path | None) -> list[Path]:
    folders = [p for p in files.glob("rank*") if p.is_dir()] if files else []
    return sorted(folders, key=lambda p: int(p.name.removeprefix("rank")))


def _table(folders: list[Path], name: str) -> pd.DataFrame:
    parts = [pd.read_parquet(folder / name) for folder in folders if (folder / name).is_file()]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _mesh(end: CaseEnd) -> dict[str, int] | None:
    try:
        return {"dp": end.case.dp_size(end.world_size), **end.case.model_axes}
    except ValueError:
        return None


def _accumulation(end: CaseEnd) -> int | None:
    try:
        return end.case.accumulation_steps(end.world_size)
    except ValueError:
        return None


def _outside(end: CaseEnd, phases: dict[str, float]) -> float:
    """Wall time outside the training steps, less what a case is asked to do besides: evaluate, save, trace."""
    return end.wall_s - sum(phases.get(name, 0.0) for name in TRAINING_PHASES)


def _seen(case: Case, ranks: list[RankRecord]) -> list[str]:
    """What the shard sizes say: ZeRO is on, and every rank holds all of its part of the model."""
    shards = [rank.shards for rank in ranks if rank.shards and rank.shards.part_elements]
    if not case.zero_stage or not shards or len(shards) < len(ranks):
        return []
    if any(s.optimizer_elements < (s.part_trainable_elements or 0) for s in shards):
        return []
    most = max(s.optimizer_elements for s in shards)
    seen = f"Seen in the shards: every rank steps all elements of its part, up to {most:,}"
    return [f"{seen}; ZeRO-{case.zero_stage} shared out nothing."]


def _timed(ranks: list[RankRecord], steps: pd.DataFrame) -> Timed | None:
    """Sums over data-parallel ranks, each sample once; times of the slowest rank."""
    if steps.empty or any(rank.window_s is None for rank in ranks):
        return None
    timed = steps[steps["timed"]]
    counted = timed[timed["rank"].isin(_one_per_replica(ranks)) & ~timed["skipped"]]
    by_step = timed[~timed["skipped"]].groupby("step")
    return Timed(
        steps=int(timed.loc[~timed["skipped"], "step"].nunique()),
        window_s=max(rank.window_s for rank in ranks),
        step_s=[float(s) for s in by_step["wall_s"].max()],
        data_wait_s=float(timed.groupby("rank")["data_wait_s"].sum().max()),
        samples=int(counted["samples"].sum()), tokens=int(counted["tokens"].sum()),
        padded_tokens=int(counted["padded_tokens"].sum()), loss_tokens=int(counted["loss_tokens"].sum()),
    )  # fmt: skip


def _one_per_replica(ranks: list[RankRecord]) -> list[int]:
    """Ranks that feed samples: one for each data-parallel coordinate."""
    first: dict[int, int] = {}
    for rank in ranks:
        first.setdefault(rank.mesh.get("dp", rank.rank), rank.rank)
    return list(first.values())


def _losses(steps: pd.DataFrame) -> list[float | None]:
    if steps.empty:
        return []
    sums = steps.groupby("step")[["loss_sum", "loss_tokens"]].sum(min_count=1)
    lost = steps.groupby("step")["loss_sum"].apply(lambda column: column.isna().any())
    losses = (sums["loss_sum"] / sums["loss_tokens"]).mask(lost)
    return [_finite(value) for value in losses]


def _grad_norms(steps: pd.DataFrame) -> list[float | None]:
    return [] if steps.empty else [_finite(v) for v in steps.groupby("step")["grad_norm"].max()]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _evaluations(scores: pd.DataFrame, facts: dict[str, Any]) -> dict[str, Evaluation]:
    """Sums of each moment whose samples are all there, each once."""
    result: dict[str, Evaluation] = {}
    expected = (facts.get("data") or {}).get("eval_samples")
    for moment, group in scores.groupby("moment") if len(scores) else ():
        if len(group) == expected and group["sample"].is_unique and group["loss_sum"].notna().all():
            sums = group[["loss_sum", "loss_tokens", "correct_tokens", "exact"]].sum()
            result[str(moment)] = Evaluation(
                samples=len(group), loss_sum=float(sums["loss_sum"]), loss_tokens=int(sums["loss_tokens"]),
                correct_tokens=int(sums["correct_tokens"]), exact_samples=int(sums["exact"]),
            )  # fmt: skip
    return result


def _checkpoint(facts: list[dict[str, Any]]) -> CheckpointFacts | None:
    """Slowest rank's times; the live engine's loss summed over the ranks' shares."""
    saved = [fact["checkpoint"] for fact in facts if fact.get("checkpoint")]
    if not saved:
        return None
    merged = CheckpointFacts.model_validate(saved[0])
    merged.save_s = max(part["save_s"] for part in saved)
    merged.load_s = max((part["load_s"] for part in saved if part["load_s"] is not None), default=None)
    merged.export_s = max(part["export_s"] for part in saved)
    shares = [fact["verify"] for fact in facts if fact.get("verify")]
    tokens = sum(share["loss_tokens"] for share in shares)
    merged.trained_loss = sum(share["loss_sum"] for share in shares) / tokens if tokens else None
    return merged


def _missing(record: CaseRecord, facts: dict[str, Any]) -> dict[str, str]:
    """Why fields are empty."""
    ended = f"the case ended {record.status}" + (f" ({record.reason})" if record.reason else "")
    missing: dict[str, str] = {}
    for name in ("model", "parameters", "data", "timed"):
        if getattr(record, name) is None:
            missing[name] = ended
    if not record.losses:
        missing["losses"] = ended
    elif None in record.losses:
        missing["losses"] = "the loss was not finite in some steps"
    if record.grad_norms and all(norm is None for norm in record.grad_norms):
        missing["grad_norms"] = "the engine computes no norm without clipping"
    if "after" not in record.evaluation:
        asked = record.case.eval_samples > 0
        missing["evaluation"] = (
            ("scores incomplete or not finite" if record.status == "ok" else ended) if asked else ("eval_samples is 0")
        )
    if record.checkpoint is None:
        reason = (facts.get("checkpoint_reason") or {}).get("reason", ended)
        missing["checkpoint"] = reason if record.case.save_checkpoint else "save_checkpoint is off"
    for rank in record.ranks:
        if rank.memory_pass is None:
            missing["memory_pass"] = ended if record.case.memory_steps else "memory_steps is 0"
        elif rank.memory_pass.status != "ok":
            missing["memory_pass"] = f"rank {rank.rank}: {rank.memory_pass.status}: {rank.memory_pass.reason}"
    return missing
