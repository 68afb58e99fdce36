"""`python -m bench suites`: list and validate suites, with what a run of them is expected to take."""

from __future__ import annotations

import click

from bench.errors import SpecError
from bench.planner.plan import CasePlan, plan_case
from bench.spec.case import Case
from bench.spec.hardware import Gpu, gpu
from bench.spec.preflight import why_not
from bench.spec.suite import load_suite, suite_names
from bench.units import gib, seconds


@click.command()
@click.argument("names", nargs=-1)
@click.option("--world-size", type=click.IntRange(1), help="Ranks to check against; default: the suite's own.")
@click.option("--gpu", "gpu_name", help="Predict the time of the training steps on this accelerator, e.g. a100-80gb.")
@click.option("--price-per-gpu-hour", type=click.FloatRange(0), help="With --gpu: price of these steps.")
def command(
    names: tuple[str, ...], world_size: int | None, gpu_name: str | None, price_per_gpu_hour: float | None
) -> None:
    """List suites (all of the project's, or those named: names or YAML files) with their cases."""
    device = gpu(gpu_name) if gpu_name else None
    broken = []
    for name in names or suite_names():
        try:
            suite = load_suite(name)
        except SpecError as error:
            broken.append(str(error))
            continue
        ranks = world_size or suite.world_size or 1
        click.echo(f"{suite.name} ({len(suite.cases)} cases, {ranks} ranks): {suite.description}")
        plans = {case.id: plan_case(case, ranks, device) for case in suite.cases}
        for case in suite.cases if names else ():
            click.echo(f"  {_line(case, ranks, plans[case.id])}")
        click.echo(f"  {expectation(suite.cases, plans, device, price_per_gpu_hour, ranks)}")
    if broken:
        raise SpecError("; ".join(broken))


def _line(case: Case, ranks: int, plan: CasePlan) -> str:
    reason = why_not(case, ranks)
    text = f"{case.id}: {case.tuning} {case.strategy} {case.precision}, batch {case.global_batch_size}, "
    text += f"seq {case.seq_len}, {case.steps} steps"
    took = steps_s(case, plan)
    return text + (f", {seconds(took)}" if took else "") + (f" — unsupported: {reason}" if reason else "")


def steps_s(case: Case, plan: CasePlan) -> float | None:
    """Expected seconds of the case's training steps; None where nothing is known of its speed."""
    rate = plan.samples_per_s
    return case.steps * case.global_batch_size / rate if rate else None


def expectation(
    cases: tuple[Case, ...], plans: dict[str, CasePlan], device: Gpu | None, price: float | None, ranks: int
) -> str:
    """One line: time of the steps, largest checkpoint on disk, price; with what is not known."""
    saving = any(case.save_checkpoint for case in cases)
    disk = [plans[c.id].checkpoint_bytes for c in cases if c.save_checkpoint and plans[c.id].checkpoint_bytes]
    saved = (
        f"largest export {gib(max(disk))}, deleted once measured"
        if disk
        else ("size of exports not known" if saving else "nothing is saved")
    )
    if device is None:
        return f"expected: {saved}; give --gpu for the time"
    times = {case.id: steps_s(case, plans[case.id]) for case in cases}
    known = [took for took in times.values() if took]
    total = sum(known)
    left = (
        f" ({len(cases) - len(known)} of {len(cases)} cases do not fit or are not known)"
        if len(known) < len(cases)
        else ""
    )
    cost = f", price {total / 3600 * ranks * price:.2f}" if price is not None else ""
    return f"expected on {device.name}: {seconds(total)} of training steps{left}{cost}; {saved}"
