"""The report's figures, one module each; every one returns None where no case has its values."""

from __future__ import annotations

from pathlib import Path

from bench.report.figures import accuracy, loss, memory, throughput
from bench.report.figures.style import save, styled
from bench.report.source import Results
from bench.report.words import Words

_DRAWERS = {"memory": memory.draw, "throughput": throughput.draw, "loss": loss.draw, "accuracy": accuracy.draw}


def draw_all(results: Results, words: Words, folder: Path) -> dict[str, Path | None]:
    """Draw every figure as PNG in one language.

    Args:
        results: what was read.
        words: language of the labels.
        folder: target, made if missing; figures of an earlier report that have no values now are removed.

    Returns:
        File by figure name, None where there was nothing to draw.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path | None] = {}
    for name, draw in _DRAWERS.items():
        path = folder / f"{name}.png"
        with styled(words.language):
            figure = draw(results, words)
            if figure is None:
                path.unlink(missing_ok=True)
            else:
                save(figure, path)
        written[name] = path if figure is not None else None
    return written
