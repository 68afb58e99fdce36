"""Write a comparison: Markdown in two languages, CSV, JSON and figures."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from bench.analysis.attribution import splits
from bench.analysis.trend import Trend
from bench.analysis.verdict import Comparison, Row
from bench.records.folder import write_atomic
from bench.report.compare_document import Outcome, render
from bench.report.compare_words import CompareWords

FORMAT_VERSION = 1
"""Of `compare.json`; grows when a key changes its meaning or goes."""
_FILES = {"en": "compare.md", "zh": "compare.zh.md"}
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
    written, pictures = [], []
    for language, name in _FILES.items():
        words = CompareWords(language)
        drawn: dict[str, Path] = {}
        if figures:
            from bench.report.compare_figures import draw_all  # matplotlib loads only where it is used

            drawn = draw_all(outcome, words, folder / "figures" / language)
        paths = {key: path.relative_to(folder).as_posix() for key, path in drawn.items()}
        write_atomic(folder / name, render(outcome, words, paths))
        written.append(folder / name)
        pictures += drawn.values()
    write_atomic(folder / "compare.csv", to_csv(outcome.comparison))
    write_atomic(folder / "compare.json", to_json(to_dict(outcome), indent=1, inf_nan_mode="null") + b"\n")
    return [*written, folder / "compare.csv", folder / "compare.json", *pictures]


def to_csv(comparison: Comparison) -> str:
    """Every row, unrounded; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    writer.writerows(_cells(row) for row in comparison.rows)
    return text.getvalue()


def _cells(row: Row) -> tuple[Any, ...]:
    return (
        row.case, row.metric, row.verdict, row.baseline, row.candidate, row.ratio, row.low, row.high, row.p, row.q,
        *row.launches, row.more, row.note, to_json(row.details).decode() if row.details else "",
    )  # fmt: skip


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """The comparison for programs: everything the texts say, with numbers as numbers and null where there is none."""
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
        "splits": [asdict(split) | {"change": split.change, "carrier": split.carrier} for split in splits(comparison)],
        "trends": [_trend(trend) for trend in outcome.trends],
        "rows": [dict(zip(_FIELDS, (*_cells(row)[:-1], row.details), strict=True)) for row in comparison.rows],
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
