"""Predicted beside measured: like against like, signed errors, and nothing left out."""

from __future__ import annotations

import pytest

from bench.analysis import derive, predicted
from bench.records.folder import read_cases
from bench.report import planned
from bench.report.source import load
from bench.report.summary import summary
from bench.report.words import Words
from bench.spec.paths import ROOT
from tests.unit.factories import make_case, make_plan, make_record, make_run, write_run
from tests.unit.report.runs import PLANNED, mixed_run
from tests.unit.report.test_report import cell, rows

EN, ZH = Words("en"), Words("zh")
FILLED = make_case(fill=True)


def section(folder, *records, words=EN, gpu=False) -> str:
    planned_ids = [record.case.id for record in records]
    return planned.section(load(write_run(folder, make_run(planned_ids, gpu=gpu), records)), words)


def test_the_error_is_signed_and_relative_to_the_measurement():
    for scale, error in ((1.2, 0.2), (0.5, -0.5)):
        record = make_record(plan=make_plan(scale=scale))
        assert predicted.peak_error(record, "tally") == pytest.approx(error, rel=1e-6)
    record = make_record(gpu=True, plan=make_plan(gpu=True, scale=1.2))
    assert predicted.peak_error(record, "allocated") == pytest.approx(0.2, rel=1e-6)
    assert predicted.speed_error(record) == pytest.approx(80 / derive.samples_per_s(record) - 1)
    assert predicted.peak_error(record, "resident") is None


def test_offloaded_state_counts_where_host_and_device_are_one_memory(tmp_path):
    plan = make_plan(scale=0.5)
    rest = plan.phases["forward"].peak_bytes * 2 - max(
        plan.phases[p].peak_bytes for p in ("forward", "backward", "step")
    )
    offloaded = make_record(FILLED, plan=plan.model_copy(update={"host_bytes": rest}))
    peak = predicted.planned_peak_bytes(offloaded, "tally")
    assert peak == predicted.planned_peak_bytes(make_record(plan=plan), "tally") + rest
    assert predicted.largest_difference(offloaded) is None
    far = make_record(FILLED, plan=plan.model_copy(update={"host_bytes": 10 * rest}))
    assert "host and device are one memory here" in section(tmp_path, far)
    on_gpu = make_record(gpu=True, plan=make_plan(gpu=True).model_copy(update={"host_bytes": rest}))
    assert predicted.planned_peak_bytes(on_gpu, "tally") == predicted.planned_peak_bytes(
        make_record(gpu=True, plan=make_plan(gpu=True)), "tally"
    )


def test_saving_is_planned_but_never_traced_so_it_does_not_count():
    plan = make_plan()
    huge = plan.phases["forward"].model_copy(update={"peak_bytes": 10 * plan.phases["forward"].peak_bytes})
    record = make_record(plan=plan.model_copy(update={"phases": {**plan.phases, "save": huge}}))
    assert predicted.peak_error(record, "tally") == pytest.approx(0, abs=1e-6)


def test_the_component_that_differs_most_is_named_beyond_five_percent(tmp_path):
    close = make_record(FILLED, plan=make_plan(scale=1.04))
    lora = make_record(make_case(tuning="lora", fill=True), plan=make_plan())
    text = section(tmp_path, close, lora)
    assert rows(text)[2] == ["full-z2", "tally", "82.65 MiB", "79.47 MiB", "+4.0 %", "within 5 %"]
    assert cell(text, "lora-z2", 5) == "gradients: 17.60 MiB / 0.463 MiB"


def test_phases_and_stages_that_differ_are_said(tmp_path):
    plan = make_plan(scale=2.0, stage=1)
    swapped = {"forward": plan.phases["step"], "backward": plan.phases["forward"], "step": plan.phases["step"]}
    text = section(tmp_path, make_record(FILLED, plan=plan.model_copy(update={"phases": swapped})))
    assert cell(text, "full-z2", 5) == "weights: 35.20 MiB / 17.60 MiB (backward / forward)¹"
    assert "predicted for pipeline stage 1, measured on stage 0" in text


def test_short_samples_make_the_prediction_a_bound_and_the_table_says_so(tmp_path):
    text = section(tmp_path, make_record(gpu=True, plan=make_plan(gpu=True)), gpu=True)
    assert cell(text, "full-z2", 2).startswith("≤ ") and "≥ 80.00 ± 15 %" in text
    assert "An upper bound: planned with every sample of seq_len = 128 tokens, while these have 41.5 on average" in text
    filled = section(tmp_path, make_record(FILLED, gpu=True, plan=make_plan(gpu=True)), gpu=True)
    assert "≤" not in filled and "≥" not in filled and "bound" not in filled


def test_extrapolation_and_missing_fit_are_marked(tmp_path):
    plan = make_plan(gpu=True, extrapolated="TP4", fits=False, shortfall_bytes=5 * 2**30, samples_per_s=None)
    record = make_record(FILLED, "oom", gpu=True, plan=plan, missing={"plan.samples_per_s": "expected not to fit"})
    text = section(tmp_path, record, gpu=True)
    assert "extrapolated: TP4" in text and "no, lacks 5.00 GiB" in text and "expected not to fit" in text
    assert [cells[1] for cells in rows(text)[2:4]] == ["allocated", "device"]


@pytest.mark.parametrize("words", [EN, ZH], ids=["en", "zh"])
@pytest.mark.parametrize("gpu", [False, True])
def test_every_launch_stays_in_the_tables_with_reasons(tmp_path, words, gpu):
    text = planned.section(load(mixed_run(tmp_path, gpu)), words)
    labels = [f"{case} #{repeat}" for case in PLANNED for repeat in (1, 2)]
    memory, *speed = [block for block in text.split("\n\n") if block.startswith("|")]
    assert list(dict.fromkeys(cells[0] for cells in rows(memory)[2:])) == labels
    assert [[cells[0] for cells in rows(block)[2:]] for block in speed] == ([labels] if gpu else [])
    assert "None" not in text and "unknown shape: model" in text


def test_records_without_a_prediction_say_why(tmp_path):
    old = read_cases(ROOT / "results" / "reference-tiny-cpu2")[:1]
    text = section(tmp_path, *old)
    assert "27.02 MiB" in text and text.count("recorded before cases stored their prediction") == 2


def test_summary_holds_prediction_and_error(tmp_path):
    results = load(write_run(tmp_path, make_run(["full-z2"], gpu=True), [make_record(gpu=True, plan=make_plan(True))]))
    row = summary(results).iloc[0]
    assert row["plan_peak_allocated_bytes"] == row["peak_allocated_bytes"]
    assert row["plan_peak_device_low_bytes"] < row["plan_peak_device_bytes"] < row["plan_peak_device_high_bytes"]
    assert row["plan_is_bound"] and row["plan_samples_per_s"] == 80 and row["plan_gpu"] == "A100-SXM4-80GB"
    assert row["plan_samples_per_s_error_share"] == pytest.approx(80 / row["samples_per_s"] - 1)
