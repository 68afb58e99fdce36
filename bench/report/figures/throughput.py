"""Bars with values: samples/s and tokens/s of every case."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.analysis.derive import QUANTITIES, Quantity
from bench.report.figures.style import ARM_COLOURS, FAILED_COLOUR, new_figure, wrapped
from bench.report.formats import DASH, text
from bench.report.reasons import status_text
from bench.report.source import Results, Slot
from bench.report.words import Words


def draw(results: Results, words: Words) -> Figure | None:
    """Draw one row per case, its repeats as mean with lowest and highest; failed cases show their status."""
    quantities = [QUANTITIES["samples_per_s"], QUANTITIES["tokens_per_s"]]
    if not any(quantities[0].value(record) is not None for record in results.records):
        return None
    rows: dict[str, list[Slot]] = {}
    for slot in results.slots:
        rows.setdefault(slot.case_id, []).append(slot)
    names = [wrapped(case_id) for case_id in rows]
    heights = [0.28 + 0.13 * name.count("\n") for name in names]
    figure = new_figure(10, 1.5 + sum(heights))
    panels = figure.subplots(1, 2, sharey=True)
    places = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
    for axes, quantity in zip(panels, quantities, strict=True):
        _panel(axes, list(rows.values()), places, quantity, words)
        axes.set_ylim(sum(heights), 0)
    panels[0].set_yticks(places, names, fontsize=8)
    figure.suptitle(words("figure_throughput"), x=0.01, ha="left", fontsize=10)
    arms = {record.case.tuning for record in results.records}
    handles = [Patch(color=ARM_COLOURS[arm], label=words(arm)) for arm in ARM_COLOURS if arm in arms]
    figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure


def _panel(axes: Axes, rows: Sequence[list[Slot]], places: Sequence[float], quantity: Quantity, words: Words) -> None:
    """One quantity: bars from zero, each with its value or its status."""
    top = 0.0
    for place, slots in zip(places, rows, strict=True):
        values = [v for slot in slots if slot.record and (v := quantity.value(slot.record)) is not None]
        label, reach = _failures(slots, words) or DASH, 0.0
        colour_of_label = "black" if values else FAILED_COLOUR
        if values:
            mean, reach = sum(values) / len(values), max(values)
            colour = ARM_COLOURS[next(slot.record.case.tuning for slot in slots if slot.record)]
            axes.barh(place, mean, height=0.2, color=colour)
            if len(values) > 1:
                axes.plot([min(values), reach], [place] * 2, color="black", linewidth=1.2, marker="|", markersize=5)
            label = text(quantity, mean) + (f"; {label}" if label != DASH else "")
        axes.annotate(
            label, (reach, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
            color=colour_of_label,
        )  # fmt: skip
        top = max(top, reach)
    axes.set_xlim(0, top * 1.22 or 1)  # room for the value behind the longest bar
    axes.set_xlabel(words("axis_samples" if quantity.name == "samples_per_s" else "axis_tokens"))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _failures(slots: Sequence[Slot], words: Words) -> str:
    """Statuses of the launches that are not ok, with their numbers where only some are not."""
    failed = [slot for slot in slots if slot.status != "ok"]
    if len({slot.status for slot in failed}) == 1 and len(failed) == len(slots):
        return status_text(failed[0], words)
    return ", ".join(f"#{slot.repeat} {status_text(slot, words)}" for slot in failed)
