"""`python -m bench compare`: did the new release make it worse?"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path
from typing import Any, Literal

import click

TERMINAL_ROWS = 40
"""Rows printed unless `--all`, unchanged ones only where all fit; the files hold every row."""


@click.command()
@click.argument("baseline", type=click.Path(exists=True, path_type=Path))
@click.argument("candidates", metavar="CANDIDATE [MORE]...", nargs=-1, required=True,
                type=click.Path(exists=True, path_type=Path))  # fmt: skip
@click.option("--axis", multiple=True, metavar="NAME", help="What is meant to differ, e.g. deepspeed, driver, "
              "variables.NCCL_*, or a field of the case; any other difference is then not comparable. Default: every "
              "difference in software.")  # fmt: skip
@click.option("--metrics", metavar="NAMES", help="Metrics to judge, shell patterns too; default: all but noisy extras.")
@click.option("--min-effect", multiple=True, metavar="[METRIC=]SHARE",
              help="Smallest change that counts, e.g. step_s=3%.")  # fmt: skip
@click.option("--detect", multiple=True, metavar="[METRIC=]SHARE", help="Change that 'unchanged' must rule out.")
@click.option("--fdr", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.05, show_default=True,
              help="False discovery rate among the changes reported of one metric.")  # fmt: skip
@click.option("--inconclusive", type=click.Choice(["ok", "fail"]), help="Exit with 0 or 1 instead of 3.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              help="Target folder; default: compare-<baseline> in the last candidate's folder.")  # fmt: skip
@click.option("--language", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Of the terminal.")
@click.option("--figures/--no-figures", default=True, help="Draw figures.")
@click.option("--all", "every", is_flag=True, help="Print every row, unchanged ones too.")
@click.pass_context
def command(context: click.Context, baseline: Path, candidates: tuple[Path, ...], **options: Any) -> None:
    """Compare results of two releases, or of a series (the last is judged against BASELINE, the rest is the trend).

    Each argument is a results folder, a folder of results folders (launches of one release), or one case.json.

    Exit codes: 0 nothing worse; 1 something regressed, newly fails or is missing; 2 usage, or not comparable;
    3 inconclusive.
    """
    _speak_utf8()
    gc.disable()  # a hundred thousand rows and no cycles: collecting takes a third of the time and finds nothing
    outcome = _outcome([baseline, *candidates], options)
    from bench.report.compare import write_comparison

    files = write_comparison(outcome, options["out"] or _target(outcome, candidates[-1]), options["figures"])
    _print(outcome, options["language"], options["every"])
    click.echo("\n" + "\n".join(str(file) for file in files[:4]))
    context.exit(outcome.code)


def _outcome(paths: list[Path], options: dict[str, Any]) -> Any:
    """Read, compare, follow."""
    from bench.analysis.conditions import check_axis
    from bench.analysis.metrics import choose, parse_thresholds
    from bench.analysis.release import read_releases

    least = parse_thresholds("--min-effect", options["min_effect"])
    detect = parse_thresholds("--detect", options["detect"])
    metrics = choose(options["metrics"], least, detect)
    axis = [name.strip() for names in options["axis"] for name in names.split(",")]
    releases = read_releases(paths)
    check_axis(axis, releases)

    from bench.analysis.compare import compare
    from bench.analysis.trend import trends
    from bench.analysis.verdict import exit_code
    from bench.report.compare_document import Outcome

    comparison = compare(releases[0], releases[-1], metrics, axis, options["fdr"])
    followed = trends(releases, metrics, axis, options["fdr"]) if len(releases) > 2 else []
    inconclusive: Literal["ok", "fail"] | None = options["inconclusive"]
    return Outcome(comparison, followed, exit_code(comparison, inconclusive))


def _target(outcome: Any, candidate: Path) -> Path:
    folder = candidate if candidate.is_dir() else candidate.parent
    name = re.sub(r"[^\w.+=-]+", "-", outcome.comparison.baseline.label).strip("-")
    return folder / f"compare-{name}"


def _print(outcome: Any, language: str, every: bool) -> None:
    """Verdict, summary, thresholds and the rows that are not unchanged."""
    from tabulate import tabulate

    from bench.report.compare_document import by_harm, headline, listing_headers, listing_row, summary
    from bench.report.compare_rules import thresholds
    from bench.report.compare_words import CompareWords

    words = CompareWords(language)
    comparison = outcome.comparison
    title = words("title", baseline=comparison.baseline.label, candidate=comparison.candidate.label)
    for text in (title, headline(outcome, words), summary(comparison, words)):
        click.echo(text.replace("**", "") + "\n")
    every = every or len(comparison.rows) <= TERMINAL_ROWS
    rows = by_harm([row for row in comparison.rows if every or row.verdict != "unchanged"])
    shown = rows if every else rows[:TERMINAL_ROWS]
    if shown:
        cells = [[" ".join(cell.split()) for cell in listing_row(row, words)] for row in shown]
        click.echo(tabulate(cells, listing_headers(words), tablefmt="simple", disable_numparse=True))
    if len(rows) > len(shown):
        click.echo(words("more_rows", n=len(rows) - len(shown)))
    click.echo("\n" + thresholds(comparison.metrics, words))


def _speak_utf8() -> None:
    """Results hold any language; a C or Latin-1 locale must not make printing them fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
