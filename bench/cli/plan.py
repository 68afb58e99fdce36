"""`bench plan`: memory, speed and feasibility before any device is touched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from tqdm import tqdm

from bench.errors import SpecError
from bench.planner.fit import cheapest
from bench.planner.plan import CasePlan, largest_seq_len, plan_case
from bench.planner.rehearsed import Rehearsed, ranks_to_rehearse
from bench.planner.tables import FORMATS, Order, render
from bench.spec.case import Case
from bench.spec.hardware import Gpu, gpu
from bench.spec.models import shape_of
from bench.spec.suite import explain, load_suite, parse_override
from bench.worker.rehearsal.fresh import Part, play_all

_NEEDED = {"learning_rate": 1e-5, "steps": 10, "warmup_steps": 3, "data": "none"}
"""Fields that a case needs and that change neither memory nor speed."""


@click.command("plan")
@click.option("--suite", help="Suite of the project, or a YAML file.")
@click.option("--model", help="Instead of a suite: catalogue name, or folder with a config.json.")
@click.option("--gpu", "gpu_name", help="Accelerator, e.g. a100-80gb; without it nothing is said about fit and speed.")
@click.option("--gpus", type=click.IntRange(1), help="Ranks; default: the suite's own number, or 1.")
@click.option("--gpus-per-node", type=click.IntRange(1), default=8, show_default=True)
@click.option("--cases", help="Shell patterns of case ids, separated by commas.")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Replace a field of every case.")
@click.option("--tuning", type=click.Choice(["full", "lora", "both"]), default="both", show_default=True)
@click.option("--samples", type=click.IntRange(1), help="Say hours (and price) for this many samples.")
@click.option("--price-per-gpu-hour", type=click.FloatRange(0), help="Price; without it none is shown.")
@click.option(
    "--rehearse", is_flag=True, help="Also run every stage through the worker and DeepSpeed, with fake tensors."
)
@click.option(
    "--workers", type=click.IntRange(1), default=2, show_default=True, help="With --rehearse: processes at a time."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    help="With --rehearse: seconds one rank may take.",
)
@click.option("--fit", is_flag=True, help="With --model: search the cheapest layout, and the longest sequence.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def command(
    suite: str | None, model: str | None, gpu_name: str | None, gpus: int | None, gpus_per_node: int,
    cases: str | None, overrides: tuple[str, ...], tuning: str, samples: int | None,
    price_per_gpu_hour: float | None, rehearse: bool, workers: int, timeout: float, fit: bool, style: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Predict memory by component and phase, fit, speed and price of a suite's cases, or of one model.

    With --model the fields of a case are given by --set, e.g. --set zero_stage=2 --set micro_batch_size=4.
    --rehearse needs neither GPU, weights nor network, and takes about half a minute for a rank of a 32B model.
    """
    if (suite is None) == (model is None):
        raise SpecError("give either --suite NAME or --model NAME")
    if fit and rehearse:
        raise SpecError("--rehearse plays given cases; it cannot be combined with --fit")
    device = gpu(gpu_name) if gpu_name else None
    order = Order(samples, price_per_gpu_hour)
    if fit:
        text = _search(model, device, overrides, tuning, gpus_per_node)
    else:
        if suite is not None:
            plans = _suite_plans(suite, device, gpus, gpus_per_node, cases, overrides)
        else:
            plans = _model_plans(model, device, gpus or 1, gpus_per_node, overrides, tuning)
        text = render(plans, order, style, _rehearse(plans, workers, timeout) if rehearse else ())
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    else:
        click.echo(text)


def _suite_plans(
    name: str, device: Gpu | None, gpus: int | None, per_node: int, patterns: str | None, overrides: tuple[str, ...]
) -> list[CasePlan]:
    suite = load_suite(name, parse_override(overrides)).select(patterns)
    world = gpus or suite.world_size or 1
    return [plan_case(case, world, device, per_node) for case in suite.cases]


def _model_plans(
    model: str, device: Gpu | None, gpus: int, per_node: int, overrides: tuple[str, ...], tuning: str
) -> list[CasePlan]:
    """Plan full and LoRA; a layout or model that does not exist is the user's mistake here."""
    shape_of(model)
    plans = []
    for fields in _model_fields(model, overrides, tuning):
        fields.setdefault("zero_stage", 3 if fields.get("engine", "deepspeed") == "deepspeed" else None)
        fields.setdefault("micro_batch_size", 1)
        micro = fields["micro_batch_size"]
        fields.setdefault("global_batch_size", micro * gpus if isinstance(micro, int) and micro > 0 else 1)
        plan = plan_case(_case(fields), gpus, device, per_node)
        if not plan.possible:
            raise SpecError(plan.reason)
        plans.append(plan)
    return plans


def _model_fields(model: str, overrides: tuple[str, ...], tuning: str) -> list[dict[str, Any]]:
    given = parse_override(overrides)
    arms = ("full", "lora") if tuning == "both" else (tuning,)
    defaults = {"model": model, "gradient_checkpointing": True, "seq_len": 2048, **_NEEDED}
    return [{**defaults, "id": arm, "tuning": arm, **given} for arm in arms]


def _case(fields: dict[str, Any]) -> Case:
    try:
        return Case.model_validate(fields)
    except ValidationError as error:
        raise SpecError(explain(error, Case)) from None


def _rehearse(plans: Sequence[CasePlan], workers: int, timeout_s: float) -> list[Rehearsed]:
    """Play the fullest rank of every stage of every case that exists, equal ones once."""
    wanted = [
        (plan, memory, rank)
        for plan in plans
        if plan.job is not None
        for memory, rank in zip(plan.memories, ranks_to_rehearse(plan), strict=True)
    ]
    parts = [Part.of(plan.case, plan.world_size, rank) for plan, _, rank in wanted]
    with tqdm(total=len({part.key for part in parts}), desc="rehearsing", unit="rank", file=sys.stderr) as bar:

        def tell(part: Part) -> None:
            bar.set_postfix_str(f"{part.case.tuning} {part.case.strategy}, rank {part.rank}")
            bar.update()

        traced = play_all(parts, workers, timeout_s, tell)
    return [Rehearsed(*one, passed) for one, passed in zip(wanted, traced, strict=True)]


def _search(model: str | None, device: Gpu | None, overrides: tuple[str, ...], tuning: str, per_node: int) -> str:
    """The cheapest layout of each method, others on as many devices, and the longest sequence there."""
    if model is None or device is None:
        raise SpecError("--fit needs --model and --gpu")
    shape, lines = shape_of(model), []
    for fields in _model_fields(model, overrides, tuning):
        _case({**fields, "zero_stage": 3, "micro_batch_size": 1, "global_batch_size": 1})
        found = cheapest(fields, shape, device, per_node)
        lines.append(found.sentence)
        if found.plan is None:
            continue
        longest = largest_seq_len(found.plan.job, device)
        lines.append(f"  largest micro-batch {found.plan.largest_micro_batch}, longest sequence {longest} tokens")
        for plan in (found.plan, *found.alternatives):
            mark = "  extrapolated" if plan.extrapolated else ""
            lines.append(f"  {plan.case.strategy}: {plan.speed.samples_per_s:.2f} samples/s, {plan.reason}{mark}")
    return "\n".join(lines)
