"""Stacked bars: what fills the memory of every rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.analysis import derive
from bench.report.figures.style import COMPONENT_COLOURS, memory_unit, new_figure
from bench.report.memory import categories
from bench.report.reasons import status_text
from bench.report.source import Results, Slot
from bench.report.words import Words

_MOST_BARS = 96
"""More bars than this are cut to two a case: more would be thinner than their labels."""


@dataclass(frozen=True)
class _Bar:
    rank: int
    parts: dict[str, int] | None
    """Bytes by category; None where there was no memory pass."""
    counter: int | None
    """Peak by the tables' meter, where that is not the tally itself."""

    @property
    def length(self) -> int:
        return max(sum(self.parts.values()) if self.parts else 0, self.counter or 0)


def draw(results: Results, words: Words) -> Figure | None:
    """Draw one group of bars per case, one bar per rank; failed cases keep their place with their status."""
    groups = [(slot, _bars(slot)) for slot in results.slots]
    total = sum(len(bars) for _, bars in groups)
    if not total:
        return None
    cut = total > _MOST_BARS
    groups = [(slot, _extremes(bars) if cut else bars) for slot, bars in groups]
    rows = sum(len(bars) + 1.5 for _, bars in groups)
    figure = new_figure(9, 1.6 + 0.2 * rows)
    axes = figure.add_subplot()
    unit, unit_name = memory_unit([bar.length for _, bars in groups for bar in bars])
    _groups(axes, groups, unit, results, words)
    axes.set_xlabel(words("axis_memory", unit=unit_name))
    axes.set_title(words("figure_memory_some" if cut else "figure_memory"), loc="left", pad=26 if total else 6)
    axes.grid(axis="y", visible=False)
    _legend(figure, axes, words)
    return figure


def _bars(slot: Slot) -> list[_Bar]:
    if slot.record is None:
        return []
    meter = derive.main_meter(slot.record)
    peaks = derive.rank_peaks(slot.record, meter)
    bars = []
    for rank in slot.record.ranks:
        split = derive.peak_split(rank)
        counter = peaks.get(rank.rank) if meter != "tally" or split is None else None
        if split or counter:
            bars.append(_Bar(rank.rank, split[1] if split else None, counter))
    return bars


def _extremes(bars: list[_Bar]) -> list[_Bar]:
    """The fullest and the emptiest rank."""
    ordered = sorted(bars, key=lambda bar: -bar.length)
    return ordered if len(ordered) < 3 else [ordered[0], ordered[-1]]


def _groups(axes: Axes, groups: list[tuple[Slot, list[_Bar]]], unit: float, results: Results, words: Words) -> None:
    """Case name above its bars, rank numbers at the axis."""
    used, y, ticks, labels = categories(results), 0.0, [], []
    for slot, bars in groups:
        note = "" if slot.status == "ok" else f"  ({status_text(slot, words)})"
        axes.text(0.003, y, slot.label + note, transform=axes.get_yaxis_transform(), va="center", fontsize=8, weight="bold")
        for bar in bars:
            y += 1
            _stack(axes, y, bar, used, unit, words)
            ticks.append(y)
            labels.append(words("label_rank", rank=bar.rank))
        y += 1.5
    axes.set_yticks(ticks, labels, fontsize=7)
    axes.set_ylim(y - 0.7, -0.9)


def _stack(axes: Axes, y: float, bar: _Bar, used: Iterable[str], unit: float, words: Words) -> None:
    left = 0.0
    for name in used if bar.parts else ():
        width = bar.parts.get(name, 0) / unit
        label = words.get(f"category_{name}", name)
        colour = COMPONENT_COLOURS.get(name, "#000000")
        axes.barh(y, width, left=left, height=0.82, color=colour, edgecolor="white", linewidth=0.4, label=label)
        left += width
    if bar.counter is None:
        return
    if bar.parts is None:
        label = words("label_unsplit")
        axes.barh(y, bar.counter / unit, height=0.82, color="white", edgecolor="#777777", hatch="////", label=label)
    else:
        label = words("label_counter", meter=words("meter_name_allocated"))
        axes.plot([bar.counter / unit] * 2, [y - 0.45, y + 0.45], color="black", linewidth=1.6, label=label)


def _legend(figure: Figure, axes: Axes, words: Words) -> None:
    """One entry a component, in a row between title and bars."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(reversed(labels), reversed(handles), strict=True))
    names = [label for label in dict.fromkeys(labels)]
    figure.legend([unique[n] for n in names], names, loc="outside upper left", ncols=5, fontsize=8)
