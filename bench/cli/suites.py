"""`python -m bench suites`: list and validate suites."""

from __future__ import annotations

import click

from bench.errors import SpecError
from bench.spec.preflight import why_not
from bench.spec.suite import load_suite, suite_names


@click.command()
@click.argument("names", nargs=-1)
@click.option("--world-size", type=click.IntRange(1), help="Ranks to check against; default: the suite's own.")
def command(names: tuple[str, ...], world_size: int | None) -> None:
    """List suites (all of the project's, or those named: names or YAML files) with their cases."""
    broken = []
    for name in names or suite_names():
        try:
            suite = load_suite(name)
        except SpecError as error:
            broken.append(str(error))
            continue
        ranks = world_size or suite.world_size or 1
        click.echo(f"{suite.name} ({len(suite.cases)} cases, {ranks} ranks): {suite.description}")
        for case in suite.cases if names else ():
            reason = why_not(case, ranks)
            click.echo(
                f"  {case.id}: {case.tuning} {case.strategy} {case.precision}, batch {case.global_batch_size}, "
                f"seq {case.seq_len}, {case.steps} steps" + (f" — unsupported: {reason}" if reason else "")
            )
    if broken:
        raise SpecError("; ".join(broken))
