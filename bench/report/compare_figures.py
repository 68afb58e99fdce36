"""Figures of a comparison: ratios with intervals, and the course of a series of releases."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.analysis.metrics import Metric
from bench.analysis.trend import Trend
from bench.analysis.verdict import Comparison, Row
from bench.report.compare_document import Outcome, spread
from bench.report.compare_words import CompareWords
from bench.report.figures.style import FAILED_COLOUR, new_figure, save, shortened, styled

NAMED = 40
"""Cases up to which a figure names each."""
TRACED = 8
"""Cases that a trend names; the others are grey."""
COLOURS = {"regressed": FAILED_COLOUR, "improved": "#0072B2", "unchanged": "#777777", "inconclusive": "#E69F00"}
_LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#882255", "#999933")


def draw_all(outcome: Outcome, words: CompareWords, folder: Path) -> dict[str, Path]:
    """Draw every figure as PNG in one language.

    Args:
        outcome: what was found.
        words: language of the labels.
        folder: target, made if missing.

    Returns:
        File by `ratio:<metric>` or `trend:<metric>`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    with styled(words.language):
        # samples/s is step time turned round; one picture of the two is enough.
        for metric in [m for m in outcome.comparison.metrics if m.kind == "noisy"][:1]:
            figure = _ratios(outcome.comparison, metric, words)
            if figure:
                found[f"ratio:{metric.name}"] = folder / f"ratio-{metric.name}.png"
                save(figure, found[f"ratio:{metric.name}"])
        for trend in outcome.trends:
            found[f"trend:{trend.metric.name}"] = folder / f"trend-{trend.metric.name}.png"
            save(_trend(trend, words), found[f"trend:{trend.metric.name}"])
    return found


def _ratios(comparison: Comparison, metric: Metric, words: CompareWords) -> Figure | None:
    """Cases sorted by ratio, each a dot with its interval, coloured by verdict."""
    rows = [r for r in comparison.rows if r.metric == metric.name and r.ratio is not None and r.verdict in COLOURS]
    if not rows:
        return None
    rows.sort(key=lambda row: row.ratio or 0.0)
    few = len(rows) <= NAMED
    figure = new_figure(9, 1.6 + 0.24 * len(rows) if few else 6)
    axes = figure.subplots()
    for verdict, colour in COLOURS.items():
        _dots(axes, [(y, row) for y, row in enumerate(rows) if row.verdict == verdict], colour, few)
    for bound in (-metric.detect, -metric.min_effect, metric.min_effect, metric.detect):
        style = ":" if abs(bound) == metric.min_effect else "--"
        place = math.exp(math.copysign(math.log1p(abs(bound)), bound))
        axes.axvline(place, color="#999999", linewidth=0.8, linestyle=style)
    axes.axvline(1, color="black", linewidth=0.8)
    if few:
        axes.set_yticks(range(len(rows)), [shortened(row.case) for row in rows], fontsize=8)
    else:
        axes.set_ylabel(words("rank_axis"))
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlabel(words("axis_ratio"))
    figure.suptitle(words("figure_ratio", metric=words(f"m_{metric.name}")), x=0.01, ha="left", fontsize=10)
    present = {row.verdict for row in rows}
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="", label=words(f"v_{verdict}"))
        for verdict, colour in COLOURS.items()
        if verdict in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _dots(axes: Axes, rows: list[tuple[int, Row]], colour: str, few: bool) -> None:
    known = [(y, row) for y, row in rows if row.low is not None and row.high is not None]
    axes.hlines([y for y, _ in known], [r.low for _, r in known], [r.high for _, r in known], color=colour,
                linewidth=1.4 if few else 0.5, alpha=1 if few else 0.5)  # fmt: skip
    axes.plot([r.ratio for _, r in rows], [y for y, _ in rows], "o", color=colour, markersize=4 if few else 2)


def _trend(trend: Trend, words: CompareWords) -> Figure:
    """The course of every case, those that changed in colour with their change points marked."""
    lines = sorted(trend.lines, key=lambda line: (not line.changes, -spread(line)))
    named, others = lines[:TRACED], lines[TRACED:][:500]
    figure = new_figure(9, 4.2)
    axes = figure.subplots()
    places = range(len(trend.labels))
    handles = []
    for line in others:
        axes.plot(places, _course(line.ratios), color="#CCCCCC", linewidth=0.7)
    for line, colour in zip(named, _LINES, strict=False):
        course = _course(line.ratios)
        label = shortened(line.case, 36)
        handles += axes.plot(places, course, color=colour, marker="o", markersize=3.5, linewidth=1.3, label=label)
        axes.plot(line.changes, [course[i] for i in line.changes], "D", color=colour, markersize=8,
                  markerfacecolor="none", markeredgewidth=1.6)  # fmt: skip
    if trend.overall:
        course = _course(trend.overall)
        handles += axes.plot(places, course, color="black", linestyle="--", linewidth=1.6, label=words("all_cases"))
    if others:
        handles.append(Line2D([], [], color="#CCCCCC", label=words("other_cases")))
    if any(line.changes for line in named):
        handles.append(Line2D([], [], color="#555555", marker="D", markerfacecolor="none", linestyle="",
                              markersize=8, label=words("change_point")))  # fmt: skip
    axes.axhline(1, color="#999999", linewidth=0.8)
    axes.set_xticks(places, [shortened(label, 24) for label in trend.labels], rotation=20, ha="right", fontsize=8)
    axes.ticklabel_format(axis="y", useOffset=False)
    figure.suptitle(words("figure_trend", metric=words(f"m_{trend.metric.name}")), x=0.01, ha="left", fontsize=10)
    figure.legend(handles=handles, loc="outside right upper", fontsize=8)
    return figure


def _course(ratios: list[float | None]) -> list[float]:
    """A gap in the line where a release has no value."""
    return [math.nan if ratio is None else ratio for ratio in ratios]
