"""Tidy tables of a run as csv, json or parquet."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import pandas as pd

from bench.errors import RecordError
from bench.records.folder import write_atomic
from bench.report.source import load
from bench.report.summary import ranks, stored, summary


def write_tables(run: Path, kind: Literal["csv", "json", "parquet"], out: Path) -> list[Path]:
    """Write the tables `summary`, `ranks`, `steps` and `eval` over all cases of a run.

    Args:
        run: results folder.
        kind: file format; json is a list of rows, missing values are null there and empty in csv.
        out: target folder, made if missing.

    Raises:
        RecordError: the run or one of its tables cannot be read, or the folder cannot be written.
    """
    results = load(run)
    tables = {
        "summary": summary(results), "ranks": ranks(results), "steps": stored(results, "steps"),
        "eval": stored(results, "eval"),
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_atomic(out / f"{name}.{kind}", _serialised(table, kind))
    except OSError as error:
        raise RecordError(f"{out}: the tables cannot be written there: {error}") from None
    return [out / f"{name}.{kind}" for name in tables]


def _serialised(table: pd.DataFrame, kind: str) -> bytes | str:
    if kind == "csv":
        return table.to_csv(index=False)
    if kind == "json":
        return table.to_json(orient="records", force_ascii=False, double_precision=15, indent=1) + "\n"
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
