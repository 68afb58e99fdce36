"""Verdicts over files: every kind of case, conditions, accuracy, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.analysis import derive
from bench.analysis.compare import compare
from bench.analysis.launch import read_launch
from bench.analysis.metrics import METERS, choose, parse_thresholds
from bench.analysis.release import read_releases
from bench.analysis.verdict import Comparison, exit_code
from bench.errors import RecordError, SpecError
from bench.records.folder import case_folder
from bench.records.schema import CaseRecord
from tests.unit.factories import make_case, make_environment, make_record, make_run, write_run

CASES = [make_case("full-z2"), make_case("lora-z2", "lora")]


def folder(
    path: Path, launches: int = 5, factor: float = 1.0, gpu: bool = False, tables: bool = False, environment=None,
    cases=CASES, keep=lambda record: record, **fields,
) -> Path:  # fmt: skip
    """A results folder: launches jitter by 1 % around 100 ms × factor."""
    rng = np.random.default_rng(int(factor * 100) + launches)
    records: list[CaseRecord] = []
    for case in cases:
        for repeat in range(1, launches + 1):
            step = 0.1 * factor * float(np.exp(0.01 * rng.standard_normal()))
            record = keep(make_record(case, repeat=repeat, step_s=step, gpu=gpu, **fields))
            records += [record] if record else []
    environment = environment or make_environment(gpu)
    run = make_run([case.id for case in cases], gpu=gpu, repeats=launches, environment=environment)
    return write_run(path, run, records, tables=tables)


def hold(*paths: Path, metrics: str | None = None, axis: tuple[str, ...] = ()) -> Comparison:
    releases = read_releases(paths)
    return compare(releases[0], releases[-1], choose(metrics), axis)


def verdicts(comparison: Comparison) -> dict[tuple[str, str], str]:
    return {(row.case, row.metric): row.verdict for row in comparison.rows}


def test_the_same_twice_is_unchanged(tmp_path):
    a = folder(tmp_path / "a", tables=True)
    result = hold(a, a)
    assert set(verdicts(result).values()) == {"unchanged"}
    assert exit_code(result, None) == 0
    assert {"full-z2", "lora-z2"} == {row.case for row in result.rows}  # no row lost for want of a LoRA rank


def test_slower_is_worse_in_both_directions_of_metrics(tmp_path):
    result = hold(folder(tmp_path / "a"), folder(tmp_path / "b", factor=1.2))
    found = verdicts(result)
    assert found["full-z2", "step_s"] == found["lora-z2", "samples_per_s"] == "regressed"
    row = next(row for row in result.rows if row.metric == "samples_per_s")
    assert row.ratio == pytest.approx(1 / 1.2, rel=0.05)
    assert exit_code(result, "ok") == 1
    back = hold(tmp_path / "b", tmp_path / "a")
    assert verdicts(back)["full-z2", "samples_per_s"] == "improved" and exit_code(back, None) == 0


def test_one_launch_time_is_open_and_bytes_are_exact(tmp_path):
    a, b = folder(tmp_path / "a", 1, gpu=True), folder(tmp_path / "b", 1, 1.2, gpu=True, scale=1.01)
    found = verdicts(hold(a, b))
    assert found["full-z2", "step_s"] == "inconclusive"
    assert found["full-z2", "allocated_peak_bytes"] == "regressed"
    assert found["full-z2", "reserved_peak_bytes"] == "unchanged"  # 1 % is within its 2 %
    assert found["full-z2", "checkpoint_bytes"] == "unchanged"
    assert exit_code(hold(a, a), None) == 3 and exit_code(hold(a, a), "ok") == 0 and exit_code(hold(a, a), "fail") == 1


def test_bytes_that_differ_between_launches_are_judged_as_noise(tmp_path):
    scales = iter([1.0, 1.004, 0.996, 1.003, 0.999] * 4)
    noisy = folder(
        tmp_path / "b", gpu=True, keep=lambda r: make_record(r.case, repeat=r.repeat, gpu=True, scale=next(scales))
    )
    row = next(r for r in hold(folder(tmp_path / "a", gpu=True), noisy).rows if r.metric == "allocated_peak_bytes")
    assert row.low is not None and row.verdict in ("unchanged", "inconclusive")


@pytest.mark.parametrize("status", ["oom", "crashed", "timeout", "skipped"])
def test_failures_by_side(tmp_path, status):
    def broken(record):
        return make_record(record.case, status, repeat=record.repeat) if record.case.tuning == "lora" else record

    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", keep=broken)
    assert verdicts(hold(a, b))["lora-z2", "status"] == "newly failing" and exit_code(hold(a, b), None) == 1
    assert verdicts(hold(b, a))["lora-z2", "status"] == "newly passing" and exit_code(hold(b, a), None) == 0
    assert verdicts(hold(b, b))["lora-z2", "status"] == "both failing" and exit_code(hold(b, b), None) == 0


def test_one_failing_launch_of_five_fails(tmp_path):
    once = folder(tmp_path / "b", keep=lambda r: make_record(r.case, "crashed", repeat=3) if r.repeat == 3 else r)
    result = hold(folder(tmp_path / "a"), once)
    assert verdicts(result)["full-z2", "status"] == "newly failing"
    assert next(r for r in result.rows if r.metric == "step_s").launches == (5, 4)


def test_a_case_that_vanished_fails_and_a_new_one_does_not(tmp_path):
    a = folder(tmp_path / "a")
    gone = folder(tmp_path / "b", keep=lambda r: None if r.case.tuning == "lora" else r)
    assert verdicts(hold(a, gone))["lora-z2", "status"] == "missing" and exit_code(hold(a, gone), None) == 1
    assert verdicts(hold(gone, a))["lora-z2", "status"] == "missing" and exit_code(hold(gone, a), None) == 0


def test_a_curve_without_its_end_or_with_a_gap_fails(tmp_path):
    a = folder(tmp_path / "a", 1)
    short = folder(tmp_path / "b", 1, keep=lambda r: r.model_copy(update={"losses": r.losses[:-2]}))
    holed = [1.0, 1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0]
    gap = folder(tmp_path / "c", 1, keep=lambda r: r.model_copy(update={"losses": holed}))
    for broken, kind in ((short, "curve_short"), (gap, "curve_gap")):
        result = hold(a, broken)
        row = next(row for row in result.rows if row.metric == "status")
        assert row.verdict == "newly failing" and row.details["candidate"][0]["status"] == kind
        assert exit_code(result, "ok") == 1


def test_a_nan_in_a_file_is_that_cases_failure(tmp_path):
    a, b = folder(tmp_path / "a", 1), folder(tmp_path / "b", 1)
    path = case_folder(b, "lora-z2", 1) / "case.json"
    raw = json.loads(path.read_text())
    raw["timed"]["window_s"] = float("nan")
    path.write_text(json.dumps(raw))
    row = next(row for row in hold(a, b).rows if row.metric == "status")
    assert row.case == "lora-z2" and row.verdict == "newly failing"
    assert row.details["candidate"][0]["status"] == "unreadable" and "window_s" in row.details["candidate"][0]["reason"]


def test_a_metric_that_only_one_side_has_is_missing_never_unchanged(tmp_path):
    a = folder(tmp_path / "a", 1)
    without = folder(tmp_path / "b", 1, keep=lambda r: r.model_copy(update={"evaluation": {}}))
    assert verdicts(hold(a, without))["full-z2", "exact_match"] == "missing"
    assert exit_code(hold(a, without), "ok") == 1 and exit_code(hold(without, a), "ok") == 0


@pytest.mark.parametrize(
    "fields,name",
    [
        ({"precision": "bf16"}, "precision"), ({"seq_len": 256}, "seq_len"),
        ({"micro_batch_size": 4}, "micro_batch_size"), ({"gradient_checkpointing": True}, "gradient_checkpointing"),
        ({"optimizer": "adamw"}, "optimizer"),
        ({"zero_stage": 3}, "zero_stage"), ({"seed": 5}, "seed"),
    ],
)  # fmt: skip
def test_differing_cases_are_not_comparable_and_say_why(tmp_path, fields, name):
    other = [make_case("full-z2", **fields), make_case("lora-z2", "lora", **fields)]
    result = hold(folder(tmp_path / "a", 1), folder(tmp_path / "b", 1, cases=other))
    rows = [row for row in result.rows if row.metric == "step_s"]
    assert all(row.verdict == "not comparable" and name in row.details["fields"] for row in rows)
    assert rows[0].baseline and rows[0].candidate  # shown all the same
    assert exit_code(result, None) == 2
    meant = hold(tmp_path / "a", tmp_path / "b", axis=(name,))
    assert not any(row.verdict == "not comparable" for row in meant.rows)


def test_facts_found_at_run_time_must_agree(tmp_path):
    a = folder(tmp_path / "a", 1)
    data = make_record().data.model_copy(update={"fingerprint": "ab" * 32})
    other = folder(tmp_path / "b", 1, keep=lambda r: r.model_copy(update={"data": data}))
    fewer = folder(tmp_path / "c", 1, world_size=1)
    for b, name in ((other, "data_fingerprint"), (fewer, "world_size")):
        row = next(row for row in hold(a, b).rows if row.metric == "step_s")
        assert row.verdict == "not comparable" and name in row.details["fields"]


def test_another_path_to_the_same_data_and_model_is_comparable(tmp_path):
    moved = [make_case(c.id, c.tuning, data="elsewhere/tiny.jsonl", model="elsewhere/tiny") for c in CASES]
    result = hold(folder(tmp_path / "a", 5), folder(tmp_path / "b", 5, cases=moved))
    assert verdicts(result)["full-z2", "step_s"] == "unchanged"
    assert verdicts(result)["full-z2", "eval_loss"] == "not comparable"  # equal shapes may hold other weights


def test_another_machine_spoils_time_and_memory_only(tmp_path):
    other = make_environment().model_copy(update={"cpu": "another", "device": "another"})
    found = verdicts(hold(folder(tmp_path / "a"), folder(tmp_path / "b", environment=other)))
    assert found["full-z2", "step_s"] == found["full-z2", "tally_peak_bytes"] == "not comparable"
    assert found["full-z2", "exact_match"] == found["full-z2", "checkpoint_bytes"] == "unchanged"


def test_another_meter_is_not_comparable(tmp_path):
    env = make_environment(gpu=True)
    a = folder(tmp_path / "a", 1, gpu=True, environment=env)
    b = folder(tmp_path / "b", 1, gpu=False, environment=env)
    row = next(row for row in hold(a, b).rows if row.metric == "allocated_peak_bytes")
    assert row.verdict == "not comparable" and "meter" in row.details["fields"]


def test_the_axis_is_found_or_stated(tmp_path):
    versions = {**make_environment().versions, "deepspeed": "0.20.0", "torch": "2.14.0"}
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", environment=make_environment(versions=versions))
    found = hold(a, b)
    assert found.conditions.axis == ["deepspeed", "torch"] and exit_code(found, None) == 0
    stated = hold(a, b, axis=("deepspeed",))
    row = next(row for row in stated.rows if row.metric == "step_s")
    assert row.verdict == "not comparable" and row.details["fields"] == ["torch"]
    assert hold(a, b, axis=("deepspeed", "tor*")).conditions.spoiled() == []


def test_accuracy_paired_by_example_finds_what_two_binomials_do_not(tmp_path):
    paired = hold(folder(tmp_path / "a", 1, tables=True, exact=40), folder(tmp_path / "b", 1, tables=True, exact=30))
    plain = hold(folder(tmp_path / "c", 1, exact=40), folder(tmp_path / "d", 1, exact=30))
    rows = [next(r for r in result.rows if r.metric == "exact_match") for result in (paired, plain)]
    assert [row.verdict for row in rows] == ["regressed", "inconclusive"]
    assert [row.note for row in rows] == ["paired", "few_examples"]
    assert rows[0].p == pytest.approx(2 * 0.5**10)  # ten examples lost, none gained


def test_launches_do_not_multiply_examples(tmp_path):
    one = hold(folder(tmp_path / "a", 1, exact=40), folder(tmp_path / "b", 1, exact=30), metrics="exact_match")
    five = hold(folder(tmp_path / "c", 5, exact=40), folder(tmp_path / "d", 5, exact=30), metrics="exact_match")
    assert five.rows[0].low == pytest.approx(one.rows[0].low)


def test_fast_values_are_those_of_derive(tmp_path):
    for gpu in (False, True):
        a = folder(tmp_path / str(gpu), 1, gpu=gpu)
        path = case_folder(a, "lora-z2", 1) / "case.json"
        record, launch = CaseRecord.model_validate_json(path.read_bytes()), read_launch(str(path))
        for meter, metric in METERS.items():
            assert launch.values.get(metric) == derive.peak_bytes(record, meter)
        after = record.evaluation["after"]
        expected = {
            "step_s": derive.step_s(record), "samples_per_s": derive.samples_per_s(record),
            "tokens_per_s": derive.tokens_per_s(record), "exact_match": derive.exact_match(after),
            "token_accuracy": derive.token_accuracy(after), "eval_loss": derive.eval_loss(after),
            "checkpoint_bytes": derive.checkpoint_bytes(record),
        }  # fmt: skip
        assert {name: launch.values[name] for name in expected} == expected


def test_runs_of_one_release_are_launches_unless_their_environments_differ(tmp_path):
    for i in range(3):
        folder(tmp_path / "old" / f"run{i}", 1)
    release = read_releases([tmp_path / "old"])[0]
    assert [x.repeat for x in release.launches["full-z2"]] == [1, 2, 3]
    folder(tmp_path / "old" / "run3", 1, environment=make_environment(driver="9"))
    with pytest.raises(RecordError, match=r"different environments.*driver"):
        read_releases([tmp_path / "old"])


def test_single_files_and_folders_that_hold_nothing(tmp_path):
    a, b = folder(tmp_path / "a", 1), folder(tmp_path / "b", 1)
    files = [case_folder(x, "full-z2", 1) / "case.json" for x in (a, b)]
    result = hold(*files)
    assert {row.case for row in result.rows} == {"full-z2"} and result.baseline.environment
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="no results"):
        read_releases([tmp_path / "empty"])


def test_thresholds_are_read_and_refused():
    assert parse_thresholds("--min-effect", ["3%", "step_s=0.05"]) == {"*": 0.03, "step_s": 0.05}
    chosen = {m.name: m for m in choose(None, {"*": 0.03, "step_s": 0.05})}
    assert chosen["step_s"].min_effect == 0.05 and chosen["eval_loss"].min_effect == 0.03
    assert chosen["allocated_peak_bytes"].detect == 0.03
    for bad in ("x", "step_s=120%", "=", "-1%"):
        with pytest.raises(SpecError, match="--min-effect"):
            parse_thresholds("--min-effect", [bad])
    with pytest.raises(SpecError, match="not known"):
        choose("speed")
    with pytest.raises(SpecError, match="below"):
        choose(None, {"step_s": 0.05}, {"step_s": 0.01})


def test_many_files_are_read_alike_by_two_processes(tmp_path, monkeypatch):
    a = folder(tmp_path / "a", 2, cases=[make_case(f"case{i}") for i in range(12)])
    alone = read_releases([a, a])[0].launches
    monkeypatch.setattr("bench.analysis.release.PARALLEL_FROM", 4)
    assert read_releases([a, a])[0].launches == alone and list(alone) == sorted(f"case{i}" for i in range(12))
