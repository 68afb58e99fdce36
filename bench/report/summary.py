"""`summary.csv` and the tidy tables of `bench export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from bench.analysis import derive, predicted
from bench.errors import RecordError
from bench.records.base import Record
from bench.records.schema import CaseRecord, RankRecord
from bench.report.source import Results, Slot

_DATA_UNITS = {name: f"{name}_tokens" for name in ("length_mean", "length_p50", "length_p95", "length_max")}
_PLAN_UNITS = {"speed_uncertainty": "speed_uncertainty_share"}
_LOSS_SUMS = {"loss_sum": "loss_sum_nats", "reload_loss": "reload_loss_nats", "trained_loss": "trained_loss_nats"}


def summary(results: Results) -> pd.DataFrame:
    """One row per planned or recorded case and repeat; every raw and derived quantity, units end the names.

    Lists are left to the tables of steps and ranks; null stays empty, with the reason in `missing`.
    """
    return _frame([_summary_row(results, slot) for slot in results.slots])


def _summary_row(results: Results, slot: Slot) -> dict[str, Any]:
    run, record = results.run, slot.record
    row: dict[str, Any] = {
        "run_id": run.run_id, "suite": run.suite, "case": slot.case_id, "repeat": slot.repeat,
        "status": slot.status.replace("_", " "), "reason": slot.problem, "device": run.environment.device,
    }  # fmt: skip
    if record is None:
        return row
    row |= {
        "reason": record.reason, "failing_rank": record.failing_rank, "world_size": record.world_size,
        "strategy": record.case.strategy, "accumulation_steps": record.accumulation_steps,
        **{f"mesh_{axis}": size for axis, size in (record.mesh or {}).items()},
        "started_at": record.started_at, "wall_s": record.wall_s,
    }  # fmt: skip
    row |= {q.column: q.value(record) for q in derive.QUANTITIES.values()}
    row |= _evaluation_columns(record) | _rank_columns(record) | _plan_columns(record) | _raw_columns(record)
    row |= {f"phase_{name}_s": seconds for name, seconds in record.phases_s.items()}
    row |= {f"case_{name}": _flat(value) for name, value in record.case if name != "id"}
    row["remarks"] = " ".join(record.remarks) or None
    row["missing"] = "; ".join(f"{field}: {reason}" for field, reason in record.missing.items()) or None
    return row


def _evaluation_columns(record: CaseRecord) -> dict[str, Any]:
    """Sums before and after training, with the interval of the share of exact matches."""
    columns: dict[str, Any] = {}
    for moment in ("before", "after"):
        sums = record.evaluation.get(moment)
        interval = derive.exact_match_interval(sums) or (None, None)
        columns |= _prefixed(f"evaluation_{moment}", sums, _LOSS_SUMS)
        columns[f"evaluation_{moment}_exact_match_low_share"] = interval[0]
        columns[f"evaluation_{moment}_exact_match_high_share"] = interval[1]
    return columns


def _rank_columns(record: CaseRecord) -> dict[str, Any]:
    """Fullest rank and spread over the ranks by meter; single ranks are in the table `ranks`."""
    columns: dict[str, Any] = {"meter": derive.main_meter(record)}
    for meter in derive.METERS:
        columns[f"fullest_rank_{meter}"] = derive.fullest_rank(record, meter)
        columns[f"peak_{meter}_spread_ratio"] = derive.peak_spread(record, meter)
    return columns


def _plan_columns(record: CaseRecord) -> dict[str, Any]:
    """The prediction and its relative errors; `plan_is_bound`: samples may be shorter than planned."""
    columns: dict[str, Any] = {"plan_is_bound": predicted.is_bound(record) if record.plan else None}
    for meter in predicted.METERS:
        bounds = record.plan.meters.get(meter) if record.plan and record.plan.meters else None
        columns |= {
            f"plan_peak_{meter}_bytes": predicted.planned_peak_bytes(record, meter),
            f"plan_peak_{meter}_low_bytes": bounds.low if bounds else None,
            f"plan_peak_{meter}_high_bytes": bounds.high if bounds else None,
            f"plan_peak_{meter}_error_share": predicted.peak_error(record, meter),
        }  # fmt: skip
    found = predicted.largest_difference(record)
    return columns | {
        "plan_samples_per_s_error_share": predicted.speed_error(record),
        "plan_differs_most": found.category if found else None,
        "plan_differs_most_planned_bytes": found.planned_bytes if found else None,
        "plan_differs_most_measured_bytes": found.measured_bytes if found else None,
        **_prefixed("plan", record.plan, _PLAN_UNITS),
    }


def _raw_columns(record: CaseRecord) -> dict[str, Any]:
    columns = _prefixed("timed", record.timed, {}) | _prefixed("parameters", record.parameters, {})
    columns |= _prefixed("data", record.data, _DATA_UNITS) | _prefixed("model", record.model, {})
    columns |= _prefixed("checkpoint", record.checkpoint, _LOSS_SUMS)
    native = record.checkpoint.native_bytes if record.checkpoint else {}
    return columns | {f"checkpoint_native_{role}_bytes": n_bytes for role, n_bytes in native.items()}


def _prefixed(prefix: str, part: Record | None, units: dict[str, str]) -> dict[str, Any]:
    """Scalar fields of a part of the record under `<prefix>_<field>`; absent parts give no columns."""
    scalars = {k: v for k, v in part if not isinstance(v, (list, dict))} if part else {}
    return {f"{prefix}_{units.get(name, name)}": value for name, value in scalars.items()}


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items()) or None
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def ranks(results: Results) -> pd.DataFrame:
    """One row per case, repeat and rank: place, peaks by meter, bytes by category at the peak, phases."""
    rows = []
    for slot, record in results.with_value(lambda record: record.ranks):
        rows += [_rank_row(slot, record, rank) for rank in record.ranks]
    return _frame(rows)


def _rank_row(slot: Slot, record: CaseRecord, rank: RankRecord) -> dict[str, Any]:
    phase, parts = derive.peak_split(rank) or (None, {})
    return {
        "case": slot.case_id, "repeat": slot.repeat, "rank": rank.rank, "host": rank.host, "device": rank.device,
        **{f"mesh_{axis}": place for axis, place in rank.mesh.items()},
        **{f"peak_{meter}_bytes": derive.rank_peaks(record, meter).get(rank.rank) for meter in derive.METERS},
        "traced_peak_phase": phase, **{f"traced_{name}_bytes": n_bytes for name, n_bytes in parts.items()},
        **_prefixed("shards", rank.shards, {}), "window_s": rank.window_s, "outside_engine_s": rank.outside_engine_s,
        "skipped_steps": rank.skipped_steps, **{f"phase_{name}_s": s for name, s in rank.phases_s.items()},
    }  # fmt: skip


def stored(results: Results, name: str) -> pd.DataFrame:
    """The tables `<name>.parquet` of all cases as one, with columns for case and repeat in front.

    Args:
        results: the run.
        name: `steps` or `eval`.

    Raises:
        RecordError: a table is there and cannot be read.
    """
    frames = []
    for slot in results.slots:
        frame = read_table(results.file(slot, f"{name}.parquet"))
        if frame is not None:
            frame.insert(0, "case", slot.case_id)
            frame.insert(1, "repeat", slot.repeat)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["case", "repeat"])


def read_table(path: Path) -> pd.DataFrame | None:
    """Read a Parquet table; None where there is none; RecordError where it is damaged."""
    if not path.is_file():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise RecordError(f"{path}: not readable as Parquet: {error}") from None


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table whose whole numbers stay whole where some are missing, and whose words stay words."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pd.api.extensions.ExtensionArray:
    dtype = _dtype({type(value) for value in values if value is not None})
    if dtype == "string":
        values = [None if value is None else str(value) for value in values]
    return pd.array(values, dtype=dtype)


def _dtype(kinds: set[type]) -> str:
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return "Int64"
    return "Float64" if kinds and kinds <= {int, float} else "string"
