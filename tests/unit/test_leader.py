"""What the plan says decides which cases are started."""

from types import SimpleNamespace

from bench.leader import Leader, Options
from bench.spec.suite import load_suite


def leader(device_kind: str, device: str, force: bool = False) -> Leader:
    environment = SimpleNamespace(device_kind=device_kind, device=device, devices_per_node=8)
    folder = SimpleNamespace(record=SimpleNamespace(environment=environment))
    return Leader(SimpleNamespace(world_size=8), folder, Options(force=force))


def test_a_case_that_cannot_fit_is_skipped_with_its_shortfall_unless_forced() -> None:
    cases = {case.id: case for case in load_suite("qwen2.5-32b-a100x8").cases}
    a100 = "NVIDIA A100-SXM4-80GB"
    status, reason = leader("cuda", a100)._refused(cases["full-zero2-filled"]) or ("", "")
    assert status == "skipped" and "GiB" in reason and "--force" in reason
    assert leader("cuda", a100)._refused(cases["lora-zero3-filled"]) is None
    assert leader("cuda", a100, force=True)._refused(cases["full-zero2-filled"]) is None


def test_unknown_devices_and_cpus_skip_nothing() -> None:
    case = next(c for c in load_suite("qwen2.5-32b-a100x8").cases if c.id == "full-zero2-filled")
    assert leader("cuda", "NVIDIA Something New")._refused(case) is None
    assert leader("cpu", "AMD EPYC")._refused(case) is None
