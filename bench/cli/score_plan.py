"""`bench score-plan`: the closed form against public measurements."""

from __future__ import annotations

from pathlib import Path

import click

from bench.planner.measured import read_measured
from bench.planner.score import render_score, score


@click.command("score-plan")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--worst", type=click.IntRange(0), default=10, show_default=True, help="Name this many of the worst rows."
)
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(file: Path, worst: int, style: str) -> None:
    """Predict every row of FILE (columns as in measured.csv) and show the errors by source, method and GPUs."""
    rows = read_measured(file)
    click.echo(render_score(rows, score(rows), worst, style))
