"""Stacked bars: what fills the memory of every rank."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.analysis import derive
from bench.report.figures.style import COMPONENT_COLOURS, FAILED_COLOUR, memory_unit, new_figure
from bench.report.formats import DASH
from bench.report.memory import categories
from bench.report.reasons import status_text
from bench.report.source import Results, Slot
from bench.report.words import Words

_MOST_BARS = 96
"""More bars than this are cut to two a case: more would be thinner than their labels."""


@dataclass(frozen=True)
class _Bar:
    rank: int
    parts: dict[str, int]
    """Bytes by category; empty where there was no memory pass."""
    counter: int | None
    """Peak by the tables' meter, where that is not the tally itself."""

    @property
    def length(self) -> int:
        return max(sum(self.parts.values()), self.counter or 0)


def draw(results: Results, words: Words) -> Figure | None:
    """Draw one group of bars per case, one bar per rank; failed cases keep their place with their status."""
    groups = [(slot, _bars(slot)) for slot in results.slots]
    total = sum(len(bars) for _, bars in groups)
    if not total:
        return None
    cut = total > _MOST_BARS
    groups = [(slot, _extremes(bars) if cut else bars) for slot, bars in groups]
    figure = new_figure(9, 1.5 + 0.2 * sum(len(bars) + 1.5 for _, bars in groups))
    axes = figure.add_subplot()
    unit, unit_name = memory_unit([bar.length for _, bars in groups for bar in bars])
    placed = _place(axes, groups, words)
    _stack(axes, placed, categories(results), unit, words)
    _counters(axes, placed, unit, results, words)
    axes.set_xlabel(words("axis_memory", unit=unit_name))
    axes.grid(axis="y", visible=False)
    figure.legend(
        loc="outside upper left", ncols=5, fontsize=8, alignment="left", title_fontsize=10,
        title=words("figure_memory_some" if cut else "figure_memory"),
    )  # fmt: skip
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
            bars.append(_Bar(rank.rank, split[1] if split else {}, counter))
    return bars


def _extremes(bars: list[_Bar]) -> list[_Bar]:
    """The fullest and the emptiest rank."""
    ordered = sorted(bars, key=lambda bar: -bar.length)
    return ordered if len(ordered) < 3 else [ordered[0], ordered[-1]]


def _place(axes: Axes, groups: list[tuple[Slot, list[_Bar]]], words: Words) -> list[tuple[float, _Bar]]:
    """Write each case's name above its bars and rank numbers at the axis; returns every bar with its height."""
    y, placed = 0.0, []
    for slot, bars in groups:
        failed = slot.status != "ok"
        note = f"  {DASH} {status_text(slot, words)}" if failed else "" if bars else f"  {DASH} {words('no_value')}"
        axes.text(
            0.003, y, slot.label + note, transform=axes.get_yaxis_transform(), va="center", fontsize=8, weight="bold",
            color=FAILED_COLOUR if failed else "black",
        )  # fmt: skip
        for bar in bars:
            y += 1
            placed.append((y, bar))
        y += 1.5
    labels = [words("label_rank", rank=bar.rank) for _, bar in placed]
    axes.set_yticks([at for at, _ in placed], labels, fontsize=7)
    axes.set_ylim(y - 0.7, -0.9)
    return placed


def _stack(axes: Axes, placed: list[tuple[float, _Bar]], used: list[str], unit: float, words: Words) -> None:
    """The components of every bar, one colour after the other."""
    split = [(y, bar) for y, bar in placed if bar.parts]
    heights, left = [y for y, _ in split], [0.0] * len(split)
    for name in used:
        widths = [bar.parts.get(name, 0) / unit for _, bar in split]
        axes.barh(
            heights, widths, left=left, height=0.82, color=COMPONENT_COLOURS.get(name, "#000000"), edgecolor="white",
            linewidth=0.4, label=words.get(f"category_{name}", name),
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]


def _counters(axes: Axes, placed: list[tuple[float, _Bar]], unit: float, results: Results, words: Words) -> None:
    """The meter of the timed steps: a tick on split bars, the whole bar where there is no split."""
    whole = [(y, bar.counter / unit) for y, bar in placed if bar.counter and not bar.parts]
    if whole:
        axes.barh(
            [y for y, _ in whole], [width for _, width in whole], height=0.82, color="white", edgecolor="#777777",
            hatch="////", label=words("label_unsplit"),
        )  # fmt: skip
    ticks = [(y, bar.counter / unit) for y, bar in placed if bar.counter and bar.parts]
    if ticks:
        label = words("label_counter", meter=words(f"meter_name_{results.meters[0]}"))
        low, high = [y - 0.45 for y, _ in ticks], [y + 0.45 for y, _ in ticks]
        axes.vlines([x for _, x in ticks], low, high, color="black", linewidth=1.6, label=label)
