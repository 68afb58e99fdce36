"""Common look: fonts, colours, sizes, names that fit."""

from __future__ import annotations

import io
import logging
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.records.folder import write_atomic
from bench.units import GIB, KIB, MIB

FONT_FILE = Path(__file__).parents[1] / "fonts" / "ftbench-sans-sc.otf"
_CHINESE_FONT, _LATIN_FONT = "ftbench Sans SC", "DejaVu Sans"

ARM_COLOURS = {"full": "#0072B2", "lora": "#E69F00"}
"""Okabe and Ito's blue and orange: apart for every common colour blindness, and in grey."""
COMPONENT_COLOURS = {
    "weights": "#332288", "gradients": "#CC6677", "master_weights": "#88CCEE", "optimizer_state": "#117733",
    "activations": "#DDCC77", "logits": "#882255", "gathered": "#44AA99", "buckets": "#AA4499",
    "batch": "#999933", "temporaries": "#BBBBBB", "other": "#777777",
}  # fmt: skip
"""Paul Tol's muted scheme; neighbours in a stack differ in lightness as well as in hue."""
FAILED_COLOUR = "#B00020"
_MARGIN_IN = 0.15


@contextmanager
def styled(language: str) -> Iterator[None]:
    """Draw with the report's fonts and sizes, leaving matplotlib's settings as they were."""
    if all(font.fname != str(FONT_FILE) for font in font_manager.fontManager.ttflist):
        font_manager.fontManager.addfont(FONT_FILE)
    fonts = [_CHINESE_FONT, _LATIN_FONT] if language == "zh" else [_LATIN_FONT, _CHINESE_FONT]
    settings = {
        "font.family": fonts, "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.7,
        "axes.axisbelow": True, "axes.unicode_minus": False, "legend.frameon": False, "savefig.dpi": 150,
        # Names from records are text, never formulas, whatever dollar signs they hold.
        "text.parse_math": False,
    }  # fmt: skip
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # A rare character outside the subset font shows as a box; that is no reason to disturb a run's output.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def new_figure(width_in: float, height_in: float) -> Figure:
    """A figure outside pyplot's global state, drawn by Agg."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    figure.get_layout_engine().set(w_pad=_MARGIN_IN / 2, h_pad=_MARGIN_IN / 2)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG atomically, with room around legends that stand outside the axes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=_MARGIN_IN, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def wrapped(name: str, width: int = 34) -> str:
    """Break a case id after its separators so that no line is longer than `width`, as far as words allow."""
    if len(name) <= width:
        return name
    spaced = re.sub(r"([-_+=./ ])", "\\1\u200b", name)
    lines = [""]
    for part in spaced.split("\u200b"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(piece for line in lines for piece in textwrap.wrap(line, width) or [""])


def shortened(name: str, width: int = 44) -> str:
    """Keep the ends of a long name, which tell cases apart."""
    return name if len(name) <= width else f"{name[: width // 2 - 1]}…{name[-(width // 2) :]}"


def memory_unit(values: Sequence[float]) -> tuple[float, str]:
    """The binary unit for an axis: the largest that keeps its maximum above one."""
    top = max(values, default=0)
    return next(((u, n) for u, n in ((GIB, "GiB"), (MIB, "MiB")) if top >= u), (KIB, "KiB"))
