"""`bench audit`: a document's claims against arithmetic, formula and measurement."""

from __future__ import annotations

from pathlib import Path

import click

from bench.analysis import derive
from bench.planner.audit_report import render_audit
from bench.planner.claim_matches import Measures, with_measurements
from bench.planner.claims import CLAIMS, read_claims
from bench.planner.verdicts import judge
from bench.records.folder import read_cases, read_run
from bench.records.schema import CaseRecord


def _export_of(tuning: str, record: CaseRecord) -> int | None:
    """Bytes of the exported model or adapter; the other method's export answers another question."""
    return derive.checkpoint_bytes(record) if record.case.tuning == tuning else None


MEASURES: Measures = {
    "peak_memory": derive.peak_bytes,
    "samples_per_s": derive.samples_per_s,
    "trainable_parameters": derive.QUANTITIES["trainable_parameters"].value,
    "parameters": lambda record: record.parameters.base if record.parameters else None,
    "checkpoint": lambda record: _export_of("full", record),
    "adapter_bytes": lambda record: _export_of("lora", record),
}
"""Quantities of claims that a run measures."""


@click.command("audit")
@click.argument("claims", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--run",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Results folder to hold the claims against, too.",
)
@click.option("--language", type=click.Choice(["en", "zh"]), default="en", show_default=True)
@click.option("--format", "style", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def command(claims: Path | None, folder: Path | None, language: str, style: str, output: Path | None) -> None:
    """Judge every claim of CLAIMS, a CSV of structured claims (default: the two reports behind this project)."""
    run = read_run(folder) if folder else None
    verdicts = [judge(claim) for claim in read_claims(claims or CLAIMS)]
    if folder and run:
        verdicts = with_measurements(verdicts, run, read_cases(folder), MEASURES)
    text = render_audit(verdicts, language, style, run)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    else:
        click.echo(text)
