"""`bench export`: a run's tables as tidy files for other tools."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), default="csv", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Target folder; RUN/export by default.")
def command(run: Path, kind: str, out: Path | None) -> None:
    """Write the tables summary, ranks, steps and eval of the results folder RUN, each as one file."""
    from bench.report.export import write_tables  # pandas loads only where it is used

    for path in write_tables(run, kind, out or run / "export"):
        click.echo(path)
