"""Plans: verdicts, refusals, search, output."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from bench.__main__ import Verbs
from bench.planner.fit import cheapest
from bench.planner.layouts import why_infeasible
from bench.planner.plan import job_fits, largest_micro_batch, plan_case
from bench.planner.tables import FORMATS, Order, plan_row, render
from bench.spec.hardware import gpu
from bench.spec.models import shape_of
from tests.unit.planner.jobs import ROOT, big, case

A100 = gpu("a100-80gb")
SHAPE = shape_of("Qwen/Qwen2.5-32B")


def bench(*arguments: str) -> object:
    return CliRunner().invoke(Verbs(), arguments)


def test_what_fits_and_what_does_not() -> None:
    fits = plan_case(case(), 8, A100)
    assert fits.fits and fits.shortfall_bytes == 0 and fits.samples_per_s > 1
    lacks = plan_case(case(zero_stage=2), 8, A100)
    assert lacks.fits is False and lacks.shortfall_bytes > 50e9 and lacks.samples_per_s is None
    assert "cannot fit by" in lacks.reason and "step, optimizer" in lacks.reason


def test_meters_are_ordered_and_within_their_margins() -> None:
    peak = plan_case(case(tuning="lora"), 8, A100).peak
    assert peak["allocated"].expected < peak["reserved"].expected < peak["device"].expected
    for prediction in peak.values():
        assert prediction.low <= prediction.expected <= prediction.high


def test_unknown_model_says_so_and_crashes_nothing(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    plan = plan_case(case(model="org/unheard-of"), 8, A100)
    assert plan.fits is None and plan.reason.startswith("unknown shape")


def test_unknown_target_module_crashes_nothing() -> None:
    plan = plan_case(case(tuning="lora", target_modules=["c_attn"]), 8, A100)
    assert plan.fits is None and "c_attn" in plan.reason


def test_no_gpu_no_verdict() -> None:
    plan = plan_case(case(), 8, None)
    assert plan.fits is None and plan.samples_per_s is None and plan.memories
    assert "no GPU" in plan.reason


@pytest.mark.parametrize(
    ("fields", "world", "message"),
    [
        ({"tp_size": 16}, 16, "tp_size 16 .*40 attention heads; accepted: 1, 2, 4, 8$"),
        # No stage of ZeRO helps where key-value heads are fewer than tensor ranks.
        ({"tp_size": 20, "zero_stage": 1}, 20, "tp_size 20 .*8 key-value heads.*accepted: 1, 2, 4, 8$"),
        ({"tp_size": 20}, 20, "tp_size 20 .*8 key-value heads.*accepted: 1, 2, 4, 8$"),
        ({"pp_size": 128, "zero_stage": 1, "global_batch_size": 128}, 128, "pp_size 128 .*64 layers.*: 1 to 64"),
        ({"pp_size": 2, "zero_stage": 2}, 8, "zero_stage 2: .*accepted: 1, or 3"),
        ({"global_batch_size": 12}, 8, "global_batch_size 12"),
        ({"sp_size": 16, "zero_stage": 1}, 16, "sp_size 16 .*40 attention heads; accepted: 1, 2, 4, 5"),
        ({"tp_size": 2, "zero_stage": 0}, 8, "zero_stage 0"),
        ({"sp_size": 2, "tp_size": 2}, 8, "data parallelism only"),
    ],
)  # fmt: skip
def test_impossible_layouts(fields: dict, world: int, message: str) -> None:
    import re

    assert re.search(message, why_infeasible(case(**fields), world, SHAPE))
    assert not plan_case(case(**fields), world, A100).possible


def test_layouts_of_models_that_the_worker_cannot_split_are_not_planned() -> None:
    plan = plan_case(case(model="mistralai/Mistral-7B-v0.1", tp_size=2, zero_stage=1), 8, A100)
    assert not plan.possible and "'mistral'" in plan.reason and "llama, qwen2, qwen3" in plan.reason


def test_samples_and_widths_that_do_not_divide_are_planned_as_they_run() -> None:
    padded = plan_case(case(sp_size=8, seq_len=2044, zero_stage=1), 8, A100)
    assert padded.possible and padded.job.tokens == 256
    uneven = case(tp_size=4, zero_stage=1, weights="random", model_overrides={"intermediate_size": 27650})
    assert plan_case(uneven, 8, A100).possible


def test_unmeasured_layouts_are_marked_and_wider() -> None:
    plan = plan_case(case(tp_size=4, pp_size=2, zero_stage=1), 8, A100)
    assert "TP4 × PP2" in plan.extrapolated
    assert plan.speed.uncertainty > plan_case(case(), 8, A100).speed.uncertainty


def test_no_bf16_on_volta() -> None:
    plan = plan_case(case(), 8, gpu("v100-32gb"))
    assert not plan.possible and "accepted: fp16, fp32" in plan.reason


def test_search_ends_at_the_last_batch_that_fits() -> None:
    job = big("lora", 2048)
    most = largest_micro_batch(job, A100)
    from dataclasses import replace

    assert job_fits(replace(job, micro_batch=most), A100)
    assert not job_fits(replace(job, micro_batch=most + 1), A100)


def test_full_needs_at_least_eight_a100() -> None:
    fields = {"id": "x", "model": "Qwen/Qwen2.5-32B", "learning_rate": 1e-5, "steps": 10, "data": "none",
              "seq_len": 2048, "gradient_checkpointing": True}  # fmt: skip
    full = cheapest({**fields, "tuning": "full"}, SHAPE, A100)
    assert full.plan.world_size == 8 and full.plan.case.strategy == "zero3"
    assert full.sentence.startswith("full needs at least 8 × A100-SXM4-80GB")
    assert cheapest({**fields, "tuning": "lora"}, SHAPE, A100).plan.world_size == 1


@pytest.mark.parametrize("style", FORMATS)
def test_formats(style: str) -> None:
    plans = [plan_case(case(id=arm, tuning=arm), 8, A100) for arm in ("full", "lora")]
    text = render(plans, Order(samples=1000, price_per_gpu_hour=2.0), style)
    assert "full" in text and "lora" in text
    if style == "json":
        rows = json.loads(text)["plans"]
        assert rows[0]["price"] == pytest.approx(rows[0]["hours"] * 16)
        parts = sum(v for k, v in rows[0].items() if k.removesuffix("_bytes") in plans[0].fullest.peak.components)
        assert parts == pytest.approx(rows[0]["tensors_peak_bytes"], abs=20)


def test_price_is_blank_without_one() -> None:
    row = plan_row(plan_case(case(), 8, A100), Order(samples=1000))
    assert row["hours"] > 0 and row["price"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "qwen-32b"], "ambiguous"), (["--model", "Qwen/Qwen2-7B", "--gpu", "L4"], "L40S"),
        (["--model", "Qwen/Qwen2-7B", "--gpus", "8", "--set", "tp_size=8"], "28 attention heads"),
        (["--model", "Qwen/Qwen2-7B", "--set", "micro_batch_size=-1"], "micro_batch_size"),
        (["--model", "Qwen/Qwen2-7B", "--set", "seq_len=0"], "seq_len"), ([], "--suite"),
        (["--model", "Qwen/Qwen2-7B", "--gpus", "0"], "--gpus"),
    ],
)  # fmt: skip
def test_bad_input_exits_with_2(arguments: list[str], message: str) -> None:
    result = bench("plan", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_suites_of_the_project_are_planned_quickly() -> None:
    start = time.process_time()
    result = bench("plan", "--suite", "qwen2.5-32b-a100x8", "--gpu", "a100-80gb", "--format", "csv")
    assert result.exit_code == 0 and time.process_time() - start < 2
    table = bench("plan", "--suite", "qwen2-7b-32gb", "--gpu", "v100-32gb")
    assert table.exit_code == 0 and "decisive" in table.output


def test_a_hundred_cases_take_under_a_second() -> None:
    cases = [case(id=str(n), tuning=("full", "lora")[n % 2], seq_len=1024 + n) for n in range(100)]
    start = time.process_time()
    for one in cases:
        plan_case(one, 8, A100)
    assert time.process_time() - start < 1


def test_the_closed_form_needs_no_torch() -> None:
    code = "import sys, bench.cli.plan, bench.cli.audit, bench.cli.score_plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
