"""Plans as rows and as text, markdown, CSV or strict JSON. Every column name carries its unit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from bench.planner.meters import METERS
from bench.planner.parts import COMPONENTS
from bench.planner.plan import CasePlan, decisive
from bench.planner.rehearsed import Rehearsed, fullest_columns, rehearsal_rows, render_rehearsals
from bench.units import gib_cell

FORMATS = ("text", "markdown", "csv", "json")
PLAN_SCHEMA_VERSION = 1
DASH = "—"


@dataclass(frozen=True)
class Order:
    """What the reader wants hours and prices for."""

    samples: int | None = None
    price_per_gpu_hour: float | None = None


def plan_row(plan: CasePlan, order: Order) -> dict[str, Any]:
    """One plan as flat values; None where a value cannot be told.

    Args:
        plan: the plan.
        order: number of samples and price.
    """
    case, fullest, speed = plan.case, plan.fullest, plan.speed if plan.fits is not False else None
    hours = order.samples / speed.samples_per_s / 3600 if speed and order.samples else None
    priced = hours is not None and order.price_per_gpu_hour is not None
    row: dict[str, Any] = {
        "case": case.id, "model": case.model, "tuning": case.tuning, "layout": case.strategy,
        "precision": case.precision, "gradient_checkpointing": case.gradient_checkpointing,
        "micro_batch_size": case.micro_batch_size, "seq_len": case.seq_len, "gpus": plan.world_size,
        "gpu": plan.gpu.name if plan.gpu else None, "fits": plan.fits, "shortfall_bytes": plan.shortfall_bytes,
    }  # fmt: skip
    for name in COMPONENTS:
        row[f"{name}_bytes"] = round(fullest.peak.components[name]) if fullest else None
    for meter in METERS:
        for bound in ("low", "expected", "high"):
            row[f"{meter}_{bound}_bytes"] = round(getattr(plan.peak[meter], bound)) if plan.peak else None
    return row | {
        "tensors_peak_bytes": round(fullest.peak.total) if fullest else None,
        "steady_bytes": round(fullest.steady.total) if fullest else None,
        "host_bytes": round(fullest.host_bytes) if fullest else None,
        "peak_phase": fullest.peak.phase if fullest else None,
        "peak_at": fullest.peak.at if fullest else None,
        "fullest_stage": fullest.stage.index if fullest else None,
        "decisive": decisive(fullest) if fullest else None,
        "largest_micro_batch": plan.largest_micro_batch,
        "samples_per_s": speed.samples_per_s if speed else None,
        "tokens_per_s": speed.tokens_per_s if speed else None,
        "step_s": speed.step_s if speed else None,
        "speed_uncertainty": speed.uncertainty if speed else None,
        "hours": hours,
        "price": hours * plan.world_size * order.price_per_gpu_hour if priced else None,
        "checkpoint_bytes": plan.checkpoint_bytes, "extrapolated": plan.extrapolated,
        "possible": plan.possible, "reason": plan.reason, "remarks": list(plan.remarks),
    }  # fmt: skip


def render(plans: Sequence[CasePlan], order: Order, style: str, rehearsals: Sequence[Rehearsed] = ()) -> str:
    """Render plans.

    Args:
        plans: in the order of the suite.
        order: number of samples and price.
        style: one of FORMATS.
        rehearsals: what was seen of their ranks, if anything was rehearsed.
    """
    rows = [plan_row(plan, order) for plan in plans]
    if style == "json":
        document = {"schema_version": PLAN_SCHEMA_VERSION, "samples": order.samples,
                    "price_per_gpu_hour": order.price_per_gpu_hour, "plans": rows}  # fmt: skip
        if rehearsals:
            document["rehearsals"] = rehearsal_rows(rehearsals)
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    if style == "csv":
        return _csv([row | (fullest_columns(rehearsals, row["case"]) if rehearsals else {}) for row in rows])
    table = "github" if style == "markdown" else "simple"
    parts = [
        tabulate([_verdict(row) for row in rows], headers="keys", tablefmt=table, disable_numparse=True),
        "Memory of the fullest rank at its peak, in GiB by component; allocated, reserved and device are three meters:",
        tabulate([_components(row) for row in rows], headers="keys", tablefmt=table, disable_numparse=True),
        "\n".join(_notes(plans, rows, style)),
    ]
    if rehearsals:
        parts.append(render_rehearsals(rehearsals, style))
    return "\n\n".join(parts)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "remarks": " ".join(row["remarks"])} for row in rows)
    return text.getvalue().rstrip("\n")


def _verdict(row: dict[str, Any]) -> dict[str, str]:
    spread = f" ± {100 * row['speed_uncertainty']:.0f} %" if row["speed_uncertainty"] else ""
    return {
        "case": row["case"], "tuning": row["tuning"], "layout": row["layout"],
        "batch × seq": f"{row['micro_batch_size']} × {row['seq_len']}",
        "ckpt": "yes" if row["gradient_checkpointing"] else "no", "type": row["precision"],
        "GiB": gib_cell(row["allocated_expected_bytes"] or row["tensors_peak_bytes"]),
        "fits": _fits(row), "decisive": row["decisive"] or DASH,
        "largest batch": DASH if row["largest_micro_batch"] is None else str(row["largest_micro_batch"]),
        "samples/s": DASH if row["samples_per_s"] is None else f"{row['samples_per_s']:.2f}{spread}",
        "hours": DASH if row["hours"] is None else f"{row['hours']:.1f}",
        "price": DASH if row["price"] is None else f"{row['price']:.0f}",
        "saved GiB": gib_cell(row["checkpoint_bytes"]),
    }  # fmt: skip


def _fits(row: dict[str, Any]) -> str:
    if not row["possible"]:
        return "impossible"
    if row["fits"] is None:
        return DASH
    star = "*" if row["extrapolated"] else ""
    return ("yes" if row["fits"] else f"no, lacks {gib_cell(row['shortfall_bytes'])}") + star


def _components(row: dict[str, Any]) -> dict[str, str]:
    shown = {"case": row["case"]}
    shown |= {name.replace("_", " "): gib_cell(row[f"{name}_bytes"]) for name in COMPONENTS if name != "batch"}
    shown["phase"] = row["peak_phase"] or DASH
    for meter in METERS:
        low, high = row[f"{meter}_low_bytes"], row[f"{meter}_high_bytes"]
        shown[meter] = (
            DASH if low is None else f"{gib_cell(row[f'{meter}_expected_bytes'])} ({gib_cell(low)}–{gib_cell(high)})"
        )
    shown["host"] = gib_cell(row["host_bytes"]) if row["host_bytes"] else DASH
    return shown


def _notes(plans: Sequence[CasePlan], rows: Sequence[dict[str, Any]], style: str) -> list[str]:
    bullet = "- " if style == "markdown" else "  "
    notes = [f"{bullet}{row['case']}: {row['reason']}" for row in rows]
    notes += sorted({f"{bullet}* extrapolated: {row['extrapolated']}" for row in rows if row["extrapolated"]})
    notes += sorted({f"{bullet}{remark}" for row in rows for remark in row["remarks"]})
    rates = {plan.speed.rate_source for plan in plans if plan.speed}
    notes += [f"{bullet}matrix rate: {source}" for source in sorted(rates)]
    return notes
