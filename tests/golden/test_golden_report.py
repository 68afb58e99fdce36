"""The report of a fixed run, word for word.

python -m tests.golden.test_golden_report    # writes the golden file anew, to be read before it is committed
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report.document import FIGURES, render
from bench.report.source import load
from bench.report.words import Words
from tests.unit.report.runs import mixed_run

GOLDEN = Path(__file__).with_name("report.md")


def rendered(folder: Path) -> str:
    """The English report of the run with everything in it; figures by their usual names."""
    return render(load(mixed_run(folder)), Words("en"), {name: f"figures/en/{name}.png" for name in FIGURES})


def test_report_is_as_it_was(tmp_path):
    assert rendered(tmp_path) == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        GOLDEN.write_text(rendered(Path(folder)), encoding="utf-8")
