"""`python -m bench import`: another tool's results as a results folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bench.errors import SpecError


@click.command("import")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="New results folder.")
@click.option("--format", "form", type=click.Choice(["peft", "fms"]), help="Default: by each file's content.")
@click.option("--fact", "facts", multiple=True, metavar="NAME=VALUE",
              help="What the source does not say: device=…, or a version, e.g. torch=2.3.0.")  # fmt: skip
def command(sources: tuple[Path, ...], out: Path, form: str | None, facts: tuple[str, ...]) -> None:
    """Read peft method_comparison results (JSON) or fms-acceleration benchmark tables (CSV) into a results folder.

    SOURCES are files or folders of them; all become one run. What a source lacks stays null with a reason.
    """
    from bench.records.foreign import convert, write

    known = {}
    for fact in facts:
        name, equals, value = fact.partition("=")
        if not equals or not name.strip():
            raise SpecError(f"--fact {fact!r}: expected NAME=VALUE, e.g. torch=2.3.0")
        known[name.strip()] = value.strip()
    imported = convert(sources, form, known, sys.argv)
    write(imported, out)
    click.echo(f"{out}: {len(imported.cases)} results of {len(imported.run.planned)} cases")
    for reason in imported.skipped:
        click.echo(f"left out: {reason}", err=True)
