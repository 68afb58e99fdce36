"""What the plan says decides which cases are started."""

from types import SimpleNamespace

from bench import leader as leading
from bench.leader import Leader, Options
from bench.records.merge import merge_case
from bench.spec.case import Case
from bench.spec.suite import load_suite


def leader(device_kind: str, device: str, force: bool = False) -> Leader:
    environment = SimpleNamespace(device_kind=device_kind, device=device, devices_per_node=8)
    folder = SimpleNamespace(record=SimpleNamespace(environment=environment))
    return Leader(SimpleNamespace(world_size=8), folder, Options(force=force))


def refused(chief: Leader, case: Case) -> tuple[str, str] | None:
    return chief._refused(case, chief._plan(case)[0])


def test_a_case_that_cannot_fit_is_skipped_with_its_shortfall_unless_forced() -> None:
    cases = {case.id: case for case in load_suite("qwen2.5-32b-a100x8").cases}
    a100 = "NVIDIA A100-SXM4-80GB"
    status, reason = refused(leader("cuda", a100), cases["full-zero2-filled"]) or ("", "")
    assert status == "skipped" and "GiB" in reason and "--force" in reason
    assert refused(leader("cuda", a100), cases["lora-zero3-filled"]) is None
    assert refused(leader("cuda", a100, force=True), cases["full-zero2-filled"]) is None


def test_unknown_devices_and_cpus_skip_nothing() -> None:
    case = next(c for c in load_suite("qwen2.5-32b-a100x8").cases if c.id == "full-zero2-filled")
    assert refused(leader("cuda", "NVIDIA Something New"), case) is None
    assert refused(leader("cpu", "AMD EPYC"), case) is None


def planned(chief: Leader, case: Case):
    _, plan, missing = chief._plan(case)
    return plan, missing


def test_the_prediction_is_stored_as_far_as_it_goes() -> None:
    case = next(c for c in load_suite("qwen2.5-32b-a100x8").cases if c.id == "lora-zero3-filled")
    plan, missing = planned(leader("cuda", "NVIDIA A100-SXM4-80GB"), case)
    assert plan.gpu == "A100-SXM4-80GB" and plan.fits and plan.samples_per_s and not missing
    assert plan.meters["allocated"].low < plan.meters["allocated"].expected < plan.meters["allocated"].high
    for phase in plan.phases.values():
        assert sum(phase.by_category.values()) == phase.peak_bytes
    plan, missing = planned(leader("cuda", "NVIDIA Something New"), case)
    assert plan.phases and (plan.gpu, plan.meters, plan.samples_per_s) == (None, None, None)
    assert set(missing) == {"plan.fits", "plan.meters", "plan.samples_per_s"}


def test_what_cannot_be_planned_is_null_with_a_reason_and_never_stops_a_run(monkeypatch) -> None:
    case = load_suite("layouts-cpu8").cases[0]
    plan, missing = planned(leader("cpu", "AMD EPYC"), case.model_copy(update={"model": "nobody/knows"}))
    assert plan is None and "unknown shape" in missing["plan"]
    monkeypatch.setattr(leading, "plan_case", lambda *_: 1 / 0)
    plan, missing = planned(leader("cpu", "AMD EPYC"), case)
    assert plan is None and missing["plan"] == "planning failed: ZeroDivisionError: division by zero"


def test_a_case_that_never_started_keeps_its_prediction() -> None:
    case = load_suite("layouts-cpu8").cases[0]
    plan, missing = planned(leader("cpu", "AMD EPYC"), case)
    end = leading.CaseEnd("run", case, 1, "skipped", "no room", None, None, 2, "2025-01-02T03:04:05Z", 0.0, [],
                          plan, missing)  # fmt: skip
    record = merge_case(end, None)[0]
    assert record.plan == plan and record.missing["plan.samples_per_s"] and record.missing["timed"]
