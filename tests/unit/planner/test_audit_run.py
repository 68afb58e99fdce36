"""The audit of a results folder: which claims a run measured, and what it says where it measured none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.analysis import derive
from bench.planner.claims import CLAIMS, read_claims
from bench.records.schema import CaseRecord
from bench.spec.paths import ROOT
from tests.unit.factories import make_case, make_environment, make_record, make_run, write_run

QKV = ("q_proj", "k_proj", "v_proj")


def record(id: str, tuning: str = "full", status: str = "ok", scale: float = 1.0, **fields) -> CaseRecord:
    """A case of the 32B model on eight A100, as the second document describes it; fields replace."""
    lora = {"lora_rank": 8, "target_modules": QKV} if tuning == "lora" else {}
    case = {"model": "Qwen/Qwen2.5-32B-Instruct", "precision": "bf16", "zero_stage": 3, "gradient_checkpointing": True,
            "fill": True, "seq_len": 2048, "micro_batch_size": 1, "global_batch_size": 8, **lora, **fields}  # fmt: skip
    return make_record(make_case(id, tuning, **case), status, world_size=8, gpu=True, scale=scale)


def audit(folder: Path, *arguments: str):
    return CliRunner().invoke(main, ["audit", "--run", str(folder), *arguments])


def measured(folder: Path) -> dict[str, dict]:
    rows = json.loads(audit(folder, "--format", "json").output)
    return {row["id"]: row for row in rows if row["measured_by"]}


def run_of(folder: Path, *records: CaseRecord, **run) -> Path:
    return write_run(folder, make_run([r.case.id for r in records], gpu=True, **run), records, tables=False)


def test_claims_meet_the_cases_they_are_about(tmp_path):
    full, lora = record("full-zero3"), record("lora-zero3", "lora", scale=0.3)
    found = measured(run_of(tmp_path, full, lora))
    assert found["B08"]["measured_by"] == ["full-zero3"]
    assert found["B08"]["measured_high"] == pytest.approx(derive.peak_bytes(full, "allocated") / 1e9)
    assert found["B18"]["measured_high"] == pytest.approx(derive.peak_bytes(lora, "allocated") / 1e9)
    assert found["B19"]["measured_low"] == derive.samples_per_s(full)
    assert found["B20"]["measured_by"] == ["lora-zero3"]
    # A full checkpoint is not an adapter, whatever the claim leaves open.
    assert found["B24.1"]["measured_by"] == ["full-zero3"] and found["B24.2"]["measured_by"] == ["lora-zero3"]
    assert found["B10"]["measured_by"] == ["lora-zero3"] and not any(name.startswith("A") for name in found)


@pytest.mark.parametrize(
    ("difference", "lost"),
    [
        ({"seq_len": 1024}, {"B08", "B19"}), ({"fill": False}, {"B08", "B19"}), ({"zero_stage": 2}, {"B08", "B19"}),
        ({"tp_size": 2}, {"B08", "B19"}), ({"offload_optimizer": "cpu"}, {"B08", "B19"}),
        ({"gradient_checkpointing": False}, set()), ({"precision": "fp32"}, {"B19"}),
        ({"model": "Qwen/Qwen2.5-14B"}, {"B08", "B19", "B24.1"}),
        ({"weights": "random", "model_overrides": {"num_hidden_layers": 2}}, {"B08", "B19", "B24.1"}),
        ({"status": "oom"}, {"B08", "B19", "B24.1"}),
    ],
)  # fmt: skip
def test_what_differs_from_the_claim_does_not_count(tmp_path, difference, lost):
    found = measured(run_of(tmp_path, record("full-zero3", **difference)))
    assert {"B08", "B19", "B24.1"} - set(found) == lost


def test_adapters_must_be_the_claimed_ones(tmp_path):
    assert "B18" not in measured(run_of(tmp_path, record("lora", "lora", target_modules=("all-linear",))))
    assert "B18" not in measured(run_of(tmp_path / "r16", record("lora", "lora", lora_rank=16)))


def test_another_device_says_nothing_on_claims_that_name_one(tmp_path):
    other = make_environment(True, device="NVIDIA H100 80GB HBM3")
    found = measured(run_of(tmp_path, record("full-zero3"), environment=other))
    assert "B19" not in found and "B08" in found


def test_several_matching_cases_give_a_range_and_their_number(tmp_path):
    records = [record(f"full-{n}", scale=1 + 0.1 * n, micro_batch_size=m) for n, m in enumerate((1, 2, 4))]
    folder = run_of(tmp_path, *records)
    row = measured(folder)["B08"]
    assert row["measured_low"] * 1.2 == pytest.approx(row["measured_high"]) and len(row["measured_by"]) == 3
    for language, words in (("en", "3 cases"), ("zh", "3 个用例")):
        text = audit(folder, "--language", language).output
        line = next(line for line in text.splitlines() if line.startswith("| B08 |"))
        assert f"83.34–100 GB ({words})" in line


@pytest.mark.parametrize(("language", "words"), [("en", "No claim matches"), ("zh", "没有断言")])
def test_a_run_of_another_suite_says_that_no_claim_matches(language, words):
    done = audit(ROOT / "results" / "reference-tiny-cpu2", "--language", language)
    assert done.exit_code == 0 and words in done.output and "Qwen/Qwen2.5-32B" in done.output
    assert "| measured |" not in done.output and "| 实测 |" not in done.output


def test_a_run_on_cpu_is_measured_by_its_tally(tmp_path):
    claims = tmp_path / "claims.csv"
    header = "id,document,quantity,value,unit,model,tuning\n"
    claims.write_text(f"{header}T1,T,peak_memory,20,MB,{ROOT / 'bench/assets/tiny'},full\n")
    done = audit(ROOT / "results" / "reference-tiny-cpu2", str(claims), "--format", "json")
    row = json.loads(done.output)[0]
    assert row["measured_by"] == ["full-ddp", "full-zero0", "full-zero2", "full-zero3"]
    assert row["measured_high"] == pytest.approx(28.33, abs=0.01)


def test_every_claim_without_a_measurement_has_a_reason(tmp_path):
    rows = json.loads(audit(run_of(tmp_path, record("full")), "--format", "json").output)
    assert len(rows) == len(read_claims(CLAIMS))
    assert all((row["why_not_measured"] is None) == bool(row["measured_by"]) for row in rows)


@pytest.mark.parametrize("make", [False, True], ids=["absent", "empty"])
def test_no_results_folder_is_one_line_and_code_2(tmp_path, make):
    folder = tmp_path / "none"
    if make:
        folder.mkdir()
    done = audit(folder)
    assert done.exit_code == 2 and "no results folder: it has no run.json" in done.stderr and done.stdout == ""
