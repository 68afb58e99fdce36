"""Write a run's report into its results folder."""

from __future__ import annotations

from pathlib import Path

from bench.records.folder import write_atomic
from bench.report import document
from bench.report.figures import draw_all
from bench.report.source import Results, load
from bench.report.summary import summary
from bench.report.words import WORDS, Words

_FILES = {"en": "report.md", "zh": "report.zh.md"}


def write_report(run: Path) -> list[Path]:
    """Render a results folder: report.md, report.zh.md, summary.csv and figures/, over any older ones.

    Args:
        run: `results/<run>`; may be incomplete, and its records partial.

    Returns:
        The files written, the English report first.

    Raises:
        RecordError: the folder has no readable `run.json`.
    """
    results = load(run)
    written: list[Path] = []
    for language in WORDS:
        words = Words(language)
        pictures = draw_all(results, words, run / "figures" / language)
        paths = {name: path and path.relative_to(run).as_posix() for name, path in pictures.items()}
        report = run / _FILES[language]
        write_atomic(report, document.render(results, words, paths))
        written += [report, *(path for path in pictures.values() if path)]
    return [*written[:1], _write_summary(results), *written[1:]]


def _write_summary(results: Results) -> Path:
    path = results.folder / "summary.csv"
    write_atomic(path, summary(results).to_csv(index=False))
    return path
