"""`bench audit`: a document's claims against arithmetic, formula and measurement."""

from __future__ import annotations

from pathlib import Path

import click

from bench.planner.audit_report import render_audit, with_measurements
from bench.planner.claims import CLAIMS, read_claims
from bench.planner.verdicts import judge
from bench.records.folder import read_cases


@click.command("audit")
@click.argument("claims", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--run", type=click.Path(file_okay=False, path_type=Path), help="Results folder to hold the claims against, too."
)
@click.option("--language", type=click.Choice(["en", "zh"]), default="en", show_default=True)
@click.option("--format", "style", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def command(claims: Path | None, run: Path | None, language: str, style: str, output: Path | None) -> None:
    """Judge every claim of CLAIMS, a CSV of structured claims (default: the two reports behind this project)."""
    verdicts = [judge(claim) for claim in read_claims(claims or CLAIMS)]
    if run is not None:
        verdicts = with_measurements(verdicts, read_cases(run))
    text = render_audit(verdicts, language, style)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    else:
        click.echo(text)
