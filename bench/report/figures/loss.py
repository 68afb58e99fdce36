"""Lines: training loss against step, and against the clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from bench.errors import RecordError
from bench.records.schema import CaseRecord
from bench.report.figures.style import ARM_COLOURS, new_figure, shortened
from bench.report.source import Results, Slot
from bench.report.summary import read_table
from bench.report.words import Words

_STYLES = ("-", "--", "-.", ":")
_FEW = 10
"""Up to this many curves get a legend column of their own width; more are packed in two columns of small print."""


def draw(results: Results, words: Words) -> Figure | None:
    """Draw every case that has losses: colour by tuning method, shade and dashes by case."""
    curves = results.with_value(lambda record: any(loss is not None for loss in record.losses))
    if not curves:
        return None
    lines = math.ceil(len(curves) / 2)
    figure = new_figure(10, 4.4 + 0.17 * lines)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    timed = False
    for (slot, record), look in zip(curves, _looks([r.case.tuning for _, r in curves]), strict=True):
        losses = [math.nan if loss is None else loss for loss in record.losses]
        label = f"{shortened(slot.label, 60)} ({words(record.case.tuning)})"
        by_step.plot(range(1, len(losses) + 1), losses, label=label, **look)
        ends = step_ends(results, slot, record)
        if ends is not None:
            timed = True
            by_time.plot(ends, losses, **look)
    _axes(by_step, by_time, timed, words)
    figure.suptitle(words("figure_loss"), x=0.01, ha="left", fontsize=10)
    figure.legend(loc="outside lower left", ncols=2, fontsize=8 if len(curves) <= _FEW else 7, handlelength=3)
    return figure


def _axes(by_step: Axes, by_time: Axes, timed: bool, words: Words) -> None:
    by_step.set_xlabel(words("axis_step"))
    by_step.set_ylabel(words("axis_loss"))
    by_step.xaxis.get_major_locator().set_params(integer=True)
    by_time.set_xlabel(words("axis_wall"))
    if not timed:
        by_time.text(0.5, 0.5, words("no_wall"), transform=by_time.transAxes, ha="center")


def _looks(arms: Sequence[str]) -> list[dict]:
    """Colour of the arm, lighter from case to case; dashes change faster than shades so neighbours differ twice."""
    counts = {arm: itertools.count() for arm in ARM_COLOURS}
    looks = []
    for arm in arms:
        index, total = next(counts[arm]), arms.count(arm)
        fade = 0.55 * (index // len(_STYLES)) / max(1, (total - 1) // len(_STYLES))
        colour = tuple(channel + (1 - channel) * fade for channel in to_rgb(ARM_COLOURS[arm]))
        looks.append({"color": colour, "linestyle": _STYLES[index % len(_STYLES)], "linewidth": 1.5})
    return looks


def step_ends(results: Results, slot: Slot, record: CaseRecord) -> list[float] | None:
    """Seconds from the start of the first step to the end of each, on the slowest rank; None where not stored."""
    try:
        frame = read_table(results.file(slot, "steps.parquet"))
    except RecordError:
        return None
    if frame is None or not {"step", "start_s", "wall_s"} <= set(frame.columns):
        return None
    ends = pd.Series(frame["start_s"] + frame["wall_s"]).groupby(frame["step"]).max()
    if len(ends) != len(record.losses):
        return None
    return [float(end) for end in ends.sort_index()]
