"""`bench report`: render a results folder."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
def command(run: Path) -> None:
    """Write report.md, report.zh.md, summary.csv and figures/ into the results folder RUN."""
    from bench.report.write import write_report  # matplotlib and pandas load only where they are used

    for path in write_report(run):
        click.echo(path)
