"""Write a comparison: Markdown in two languages, CSV, JSON and figures."""

from __future__ import annotations

import csv
import io
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from bench.analysis.trend import Trend
from bench.analysis.verdict import Comparison, Row
from bench.records.folder import write_atomic
from bench.report.compare_document import Outcome, render
from bench.report.compare_words import CompareWords

FORMAT_VERSION = 1
"""Of `compare.json`; grows when a key changes its meaning or goes."""
_FILES = {"en": "compare.md", "zh": "compare.zh.md"}
PARALLEL_FROM = 10_000
"""Rows from which figures are drawn beside the writing."""
Drawn = dict[str, dict[str, Path]]
"""Language → figure → file."""
_FIELDS = (
    "case", "metric", "verdict", "baseline", "candidate", "ratio", "low", "high", "p", "q", "baseline_launches",
    "candidate_launches", "more_launches", "note", "details",
)  # fmt: skip


def write_comparison(outcome: Outcome, folder: Path, figures: bool = True) -> list[Path]:
    """Write compare.md, compare.zh.md, compare.csv, compare.json and figures/, over any older ones.

    Args:
        outcome: what was found.
        folder: target, made if missing.
        figures: draw them too.

    Returns:
        The files written, the English text first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawing = _start_drawing(outcome, folder) if figures else None
    write_atomic(folder / "compare.csv", to_csv(outcome.comparison))
    write_atomic(folder / "compare.json", to_document(outcome))
    drawn = drawing() if drawing else {language: {} for language in _FILES}
    for language, name in _FILES.items():
        paths = {key: path.relative_to(folder).as_posix() for key, path in drawn[language].items()}
        write_atomic(folder / name, render(outcome, CompareWords(language), paths))
    names = [*_FILES.values(), "compare.csv", "compare.json"]
    return [*(folder / name for name in names), *(path for paths in drawn.values() for path in paths.values())]


def _start_drawing(outcome: Outcome, folder: Path) -> Callable[[], Drawn]:
    """Draw large comparisons in a forked process while this one writes; returns what waits for the figures."""
    if len(outcome.comparison.rows) < PARALLEL_FROM or "fork" not in multiprocessing.get_all_start_methods():
        return lambda: _draw(outcome, folder)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(_draw(outcome, folder)))
    process.start()
    sender.close()

    def wait() -> Drawn:
        try:
            return receiver.recv()
        except EOFError:  # the process died: draw here, where an error can be seen
            return _draw(outcome, folder)
        finally:
            process.join()

    return wait


def _draw(outcome: Outcome, folder: Path) -> Drawn:
    from bench.report.compare_figures import draw_all  # matplotlib loads only where it is used

    return {name: draw_all(outcome, CompareWords(name), folder / "figures" / name) for name in _FILES}


def to_csv(comparison: Comparison) -> str:
    """Every row, unrounded; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    writer.writerows(_cells(row) for row in comparison.rows)
    return text.getvalue()


def _cells(row: Row) -> tuple[Any, ...]:
    return (*_numbers(row), to_json(row.details).decode() if row.details else "")


def _numbers(row: Row) -> tuple[Any, ...]:
    """Values of `_FIELDS` but the last."""
    return (
        row.case, row.metric, row.verdict, row.baseline, row.candidate, row.ratio, row.low, row.high, row.p, row.q,
        *row.launches, row.more, row.note,
    )  # fmt: skip


def to_document(outcome: Outcome) -> bytes:
    """The comparison for programs, strict JSON: numbers as numbers, null where there is none.

    Rows stand one a line, written one by one: there may be a hundred thousand.
    """
    head = to_json(_head(outcome), indent=1, inf_nan_mode="null").rstrip(b"\n}")
    named = (dict(zip(_FIELDS, (*_numbers(row), row.details))) for row in outcome.comparison.rows)
    rows = [to_json(row, inf_nan_mode="null") for row in named]
    return head + b',\n "rows": [\n' + b",\n".join(rows) + b"\n ]\n}\n"


def _head(outcome: Outcome) -> dict[str, Any]:
    """Everything but the rows."""
    comparison = outcome.comparison
    return {
        "format_version": FORMAT_VERSION,
        "exit_code": outcome.code,
        "baseline": _side(comparison.baseline), "candidate": _side(comparison.candidate),
        "axis": comparison.conditions.axis, "axis_stated": comparison.conditions.stated,
        "differences": [asdict(d) for d in comparison.conditions.differences],
        "false_discovery_rate": comparison.fdr,
        "metrics": [asdict(metric) for metric in comparison.metrics],
        "counts": comparison.counts(),
        "set": [asdict(row) for row in comparison.set_rows],
        "assumptions": [asdict(found) for found in comparison.assumptions],
        "splits": [asdict(split) | {"change": split.change, "carrier": split.carrier} for split in outcome.splits],
        "phases": [asdict(change) for change in outcome.phases],
        "trends": [_trend(trend) for trend in outcome.trends],
    }  # fmt: skip


def _side(release: Any) -> dict[str, Any]:
    return {
        "label": release.label, "source": release.source, "cases": len(release.launches),
        "launches": sum(map(len, release.launches.values())), "incomplete": release.incomplete,
        "started_at": release.started_at,
    }  # fmt: skip


def _trend(trend: Trend) -> dict[str, Any]:
    lines = [asdict(line) | {"ratios": line.ratios} for line in trend.lines]
    overall = [None if r is None or math.isnan(r) else r for r in trend.overall]
    return {
        "metric": trend.metric.name, "labels": trend.labels, "tested": trend.tested, "overall": overall, "lines": lines,
    }  # fmt: skip
