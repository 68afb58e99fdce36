"""A rehearsal beside the formulas: which rank, how far apart, and in which component."""

from __future__ import annotations

import csv
import io
import json

import pytest

from bench.planner.meters import workspace_bytes
from bench.planner.plan import CasePlan, plan_case
from bench.planner.rehearsed import Rehearsed, flash_accumulator_bytes, ranks_to_rehearse
from bench.planner.tables import Order, render
from bench.records.memory import MemoryPass, TallyPhase
from bench.spec.hardware import gpu
from tests.unit.planner.jobs import case

A100 = gpu("a100-80gb")


def traced(plan: CasePlan, stage: int = 0, **more: float) -> MemoryPass:
    """What the formulas say, as if it had been seen, with some components changed."""
    memory, phases = plan.memories[stage], {}
    for name in ("forward", "backward", "step"):
        parts = {k: round(v) for k, v in memory.phase_peak(name).components.items()}
        parts |= {k: parts.get(k, 0) + round(v) for k, v in more.items()}
        phases[name] = TallyPhase(peak_bytes=sum(v for k, v in parts.items() if k != "host"), by_category=parts)
    steady = {k: round(v) for k, v in memory.steady.components.items()}
    phases["steady"] = TallyPhase(peak_bytes=sum(steady.values()), by_category=steady)
    return MemoryPass(status="ok", phases=phases, peak_bytes=max(p.peak_bytes for p in phases.values()))


def test_one_rank_of_every_stage_and_the_fullest_of_its_replicas() -> None:
    assert ranks_to_rehearse(plan_case(case(zero_stage=3), 8, A100)) == [0]
    assert ranks_to_rehearse(plan_case(case(zero_stage=3, pp_size=4), 8, A100)) == [0, 2, 4, 6]
    # The embedding's gradient is kept whole by every rank into whose partition it reaches, and so is the head's:
    # under ZeRO-2 some rank other than the first keeps more than it.
    [fullest] = ranks_to_rehearse(plan_case(case(zero_stage=2), 8, A100))
    assert 0 < fullest < 8


def test_equal_peaks_name_no_component_and_unequal_ones_the_one_that_is_off() -> None:
    plan = plan_case(case(), 8, A100)
    same = Rehearsed(plan, plan.fullest, 0, traced(plan))
    assert same.error == pytest.approx(0, abs=1e-9) and same.differs_in is None
    assert same.steady_error == pytest.approx(0, abs=1e-9) and not any(same.differences().values())
    more = Rehearsed(plan, plan.fullest, 0, traced(plan, activations=10 * 2**30))
    assert more.error < -0.1 and more.differs_in == "activations −10.00 GiB"
    less = Rehearsed(plan, plan.fullest, 0, traced(plan, weights=-4 * 2**30))
    assert less.error > 0.05 and less.differs_in == "weights +4.00 GiB"
    unknown = Rehearsed(plan, plan.fullest, 0, traced(plan, other=10 * 2**30))
    assert unknown.differs_in == "other −10.00 GiB"


def test_host_memory_is_in_no_peak_and_a_full_device_does_not_fit() -> None:
    plan = plan_case(case(), 8, A100)
    seen = Rehearsed(plan, plan.fullest, 0, traced(plan, host=500 * 2**30))
    assert seen.error == pytest.approx(0, abs=1e-9) and seen.fits is plan.fits is True
    assert Rehearsed(plan, plan.fullest, 0, traced(plan, activations=40 * 2**30)).fits is False
    assert Rehearsed(plan_case(case(), 8, None), plan.fullest, 0, traced(plan)).fits is None


def test_what_lives_inside_a_kernel_widens_the_upper_bound() -> None:
    plan = plan_case(case(tuning="lora"), 8, A100)
    seen = Rehearsed(plan, plan.fullest, 0, traced(plan))
    assert seen.phase == "backward"
    # fp32, 40 heads of 128, 2048 tokens.
    assert flash_accumulator_bytes(plan.job) == 4 * 5120 * plan.job.tokens
    allocated = seen.meters["allocated"]
    assert allocated.expected == seen.traced.peak_bytes + workspace_bytes(A100)
    assert allocated.high == pytest.approx(1.05 * allocated.expected + flash_accumulator_bytes(plan.job))


def test_every_format_has_every_rank_and_says_why_one_is_missing() -> None:
    plan, failed = plan_case(case(), 8, A100), MemoryPass(status="crashed", reason="the rehearsal took longer than 1 s")
    there, gone = Rehearsed(plan, plan.fullest, 0, traced(plan)), Rehearsed(plan, plan.fullest, 0, failed)
    for style in ("text", "markdown"):
        text = render([plan], Order(), style, [there, gone])
        assert "took longer than 1 s" in text and "crashed" in text and "+0.0 %" in text
    rows = json.loads(render([plan], Order(), "json", [there, gone]))["rehearsals"]
    assert [row["status"] for row in rows] == ["ok", "crashed"] and rows[1]["peak_bytes"] is None
    assert rows[0]["phases"]["steady"]["peak_bytes"] == there.traced.phases["steady"].peak_bytes
    [row] = csv.DictReader(io.StringIO(render([plan], Order(), "csv", [there])))
    assert int(row["rehearsed_peak_bytes"]) == there.traced.peak_bytes and row["rehearsed_rank"] == "0"
    [empty] = csv.DictReader(io.StringIO(render([plan], Order(), "csv", [gone])))
    assert empty["rehearsed_peak_bytes"] == "" and set(empty) == set(row)
    assert "rehears" not in render([plan], Order(), "text").lower()
