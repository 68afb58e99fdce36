"""Scatter: what a case learns against the memory that it needs."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from bench.analysis import derive
from bench.report.figures.style import ARM_COLOURS, memory_unit, new_figure, shortened
from bench.report.source import Results
from bench.report.words import Words

_MARKERS = {"full": "o", "lora": "s"}
_OFFSETS = [(7, 4), (7, -10), (-7, 4), (-7, -10), (0, 9), (0, -15), (12, 14), (-12, 14), (12, -20), (-12, -20),
            (20, 26), (-20, 26), (20, -32), (-20, -32), (30, 0), (-30, 0)]  # fmt: skip
"""Places to try for a label around its point, in points; the first free one is taken."""
_FEW = 8
"""Up to this many points are labelled by name; more carry numbers, with the names beside the axes."""


@dataclass(frozen=True)
class _Point:
    name: str
    arm: str
    peak_bytes: float
    percent: float
    low: float
    high: float


def draw(results: Results, words: Words) -> Figure | None:
    """Draw every case that has both numbers by one meter, with its interval, and the base model as a line."""
    meter = results.meters[0]
    points = _points(results, meter)
    if not points:
        return None
    many = len(points) > _FEW
    figure = new_figure(10, 5 if not many else max(5, 0.9 + 0.16 * len(points)))
    axes = figure.add_subplot()
    unit, unit_name = memory_unit([p.peak_bytes for p in points])
    for p in points:
        axes.errorbar(
            p.peak_bytes / unit, p.percent, yerr=[[p.percent - p.low], [p.high - p.percent]], fmt=_MARKERS[p.arm],
            color=ARM_COLOURS[p.arm], markersize=6, capsize=2, elinewidth=1, alpha=0.9,
        )  # fmt: skip
    base = {s for r in results.records if (s := derive.exact_match(r.evaluation.get("before"))) is not None}
    for level in base:
        axes.axhline(100 * level, color="#555555", linestyle="--", linewidth=1)
    axes.set_xlabel(words("axis_peak", meter=words(f"meter_name_{meter}"), unit=unit_name))
    axes.set_ylabel(words("axis_exact"))
    axes.set_ylim(-4, 106)
    axes.margins(x=0.18)
    _legend(figure, points, bool(base), many, words)
    axes.set_title(words("figure_accuracy"), loc="left", pad=10)
    _label(figure, axes, points, unit, many)
    return figure


def _points(results: Results, meter: str) -> list[_Point]:
    points = []
    for slot, record in results.with_value(lambda record: record.evaluation.get("after")):
        after, peak = record.evaluation["after"], derive.peak_bytes(record, meter)
        value, interval = derive.exact_match(after), derive.exact_match_interval(after)
        if peak is not None and value is not None and interval is not None:
            # An interval may round to just inside its own share at 0 and 1.
            low, high = min(interval[0], value), max(interval[1], value)
            points.append(_Point(slot.label, record.case.tuning, peak, 100 * value, 100 * low, 100 * high))
    return points


def _legend(figure: Figure, points: list[_Point], base: bool, many: bool, words: Words) -> None:
    """Arms and base line, and the key of the numbers, all outside the axes."""
    arms = [arm for arm in ARM_COLOURS if any(p.arm == arm for p in points)]
    handles = [Line2D([], [], color=ARM_COLOURS[a], marker=_MARKERS[a], linestyle="", label=words(a)) for a in arms]
    if base:
        handles.append(Line2D([], [], color="#555555", linestyle="--", label=words("label_base")))
    handles.append(Line2D([], [], linestyle="", label=words("label_interval")))
    if many:
        for i, p in enumerate(points):
            label = f"{i + 1}  {shortened(p.name)}"
            handles.append(Line2D([], [], color=ARM_COLOURS[p.arm], marker=_MARKERS[p.arm], linestyle="", label=label))
        figure.legend(handles=handles, loc="outside right upper", fontsize=7)
    else:
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))


def _label(figure: Figure, axes: Axes, points: list[_Point], unit: float, many: bool) -> None:
    """Put each label at the first place around its point where it covers neither a point nor another label."""
    figure.canvas.draw()  # settles the layout, on which the places in pixels depend
    figure.set_layout_engine("none")
    renderer, frame = figure.canvas.get_renderer(), axes.get_window_extent()
    spots = [axes.transData.transform((p.peak_bytes / unit, p.percent)) for p in points]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in spots]
    for i, p in enumerate(points):
        name = str(i + 1) if many else shortened(p.name, 36)
        for dx, dy in _OFFSETS:
            side = {1: "left", -1: "right", 0: "center"}[(dx > 0) - (dx < 0)]
            lead = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkB": 3} if abs(dx) > 10 else None
            at = (p.peak_bytes / unit, p.percent)
            place = {"xytext": (dx, dy), "textcoords": "offset points", "ha": side}
            label = axes.annotate(name, at, **place, fontsize=7, arrowprops=lead)
            box = label.get_window_extent(renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                break
            if (dx, dy) != _OFFSETS[-1]:
                label.remove()
        taken.append(box)
