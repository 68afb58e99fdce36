"""`python -m bench VERB`: one small module per verb under `bench/cli/`, imported when the verb is used."""

from __future__ import annotations

import importlib
import importlib.util

import click

from bench.errors import BenchError

VERBS = {
    "plan": "Predict memory and speed of a suite before any device is rented.",
    "report": "Render a results folder as tables and figures.",
    "compare": "Say what became better or worse between two runs.",
    "audit": "Hold the claims of a document against arithmetic and measurements.",
    "doctor": "Check this machine before a run.",
    "export": "Write a run's tables as csv, json or parquet.",
    "import": "Read another tool's results into a results folder.",
    "suites": "List the suites and their cases.",
    "score-plan": "Score the planner against public or own measurements.",
    "prepare": "Fetch models and data before a run.",
}
"""Verb → help. The module of `score-plan` is `bench.cli.score_plan`, of `import` (a keyword) `bench.cli.import_`;
each defines `command`, a click command."""


def _module(verb: str) -> str:
    return f"bench.cli.{verb.replace('-', '_')}" + ("_" if verb == "import" else "")


class Verbs(click.Group):
    """Lists and loads verbs lazily, so that `--help` and torch-free verbs stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs whose module exists."""
        return [verb for verb in VERBS if importlib.util.find_spec(_module(verb))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of one verb; None where there is none."""
        if name not in self.list_commands(ctx):
            return None
        return importlib.import_module(_module(name)).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from `VERBS`; click's own listing would import every module."""
        rows = [(verb, VERBS[verb]) for verb in self.list_commands(ctx)]
        if rows:
            with formatter.section("Verbs"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run a verb; a user's mistake becomes one line on stderr and its exit code."""
        try:
            return super().invoke(ctx)
        except BenchError as error:
            click.echo(f"error: {' '.join(str(error).split())}", err=True)
            ctx.exit(error.exit_code)


@click.command(cls=Verbs, name="bench", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Full fine-tuning or LoRA under DeepSpeed: plan, run, report and compare."""


if __name__ == "__main__":
    main(prog_name="python -m bench")
