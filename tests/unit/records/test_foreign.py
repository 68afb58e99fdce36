"""Foreign results: what becomes of them, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.analysis import derive
from bench.analysis.compare import compare
from bench.analysis.metrics import choose
from bench.analysis.release import read_releases
from bench.errors import RecordError
from bench.records.folder import read_cases, read_run
from bench.records.foreign import convert, write
from bench.spec.paths import ROOT

DATA = ROOT / "tests" / "data" / "foreign"


def imported(source: Path, out: Path, **facts: str):
    write(convert([source], None, facts, ["import"]), out)
    return {record.case.id: record for record in read_cases(out)}


def test_peft_keeps_full_and_lora_and_says_what_it_leaves_out(tmp_path):
    result = convert([DATA / "peft"], None, {}, [])
    assert [record.case.tuning for record in result.cases] == ["full", "lora", "lora"]
    assert len(result.skipped) == 1 and "IA3" in result.skipped[0]
    assert result.run.environment.versions["peft"] == "0.15.2" and result.run.environment.device == "NVIDIA L40S"
    full, lora, failed = result.cases
    assert derive.samples_per_s(lora) == pytest.approx(2000 / (210000 / 6740 * 2.01))
    assert derive.exact_match(lora.evaluation["after"]) == 636 / 1319
    assert derive.peak_bytes(lora, "reserved") == 22273851392  # the column's old name
    assert derive.peak_bytes(full, "reserved") == 37241225216  # and its new one
    assert lora.case.lora_rank == 32 and lora.case.target_modules == ("q_proj", "v_proj")
    assert full.checkpoint is None and "estimates" in full.missing["checkpoint"]
    assert full.case.weight_decay == 0.01 and lora.case.weight_decay == 0.1
    assert failed.status == "oom" and failed.timed is None and any("rslora" in r for r in failed.remarks)


def test_fms_reads_old_and_new_columns(tmp_path):
    old = imported(DATA / "fms" / "old.csv", tmp_path / "old")
    new = imported(DATA / "fms" / "new.csv", tmp_path / "new", device="A100")
    assert old.keys() == new.keys() and len(old) == 5
    two = old["none-full-Mistral-7B-v0.1-gpu2-b2"]
    assert two.world_size == 2 and two.timed.steps == 30 and two.timed.samples == 120
    assert derive.tokens_per_s(two) == pytest.approx(2 * 2698.11, rel=1e-4)  # the source counts per GPU
    assert derive.peak_bytes(two, "allocated") == 36762859520
    assert new["none-full-Mistral-7B-v0.1-gpu2-b2"].status == "oom"
    assert old["none-full-Mixtral-8x7B-Instruct-v0.1-gpu1-b4"].status == "crashed"
    assert any("Quantised" in remark for remark in old["baseline-peft-bnb-lora-Mistral-7B-v0.1-gpu1-b4"].remarks)
    assert read_run(tmp_path / "new").environment.device == "A100"


def test_imports_compare_and_their_stand_ins_are_read_as_null(tmp_path):
    for name in ("old", "new"):
        imported(DATA / "fms" / f"{name}.csv", tmp_path / name, device="A100", fms=name)
    result = compare(*read_releases([tmp_path / "old", tmp_path / "new"]), choose(None))
    found = {(row.case, row.metric): row for row in result.rows}
    case = "none-full-Mistral-7B-v0.1-gpu1-b4"
    assert found[case, "step_s"].verdict == "inconclusive"
    assert found[case, "step_s"].ratio == pytest.approx(160.49 / 177.1092)
    assert found[case, "allocated_peak_bytes"].verdict == "improved"
    assert found["none-full-Mistral-7B-v0.1-gpu2-b2", "status"].verdict == "newly failing"
    assert not any(row.verdict == "not comparable" for row in result.rows)
    assert not any(launch.parts for side in result.baseline.launches.values() for launch in side)
    assert result.conditions.axis == ["fms"]


def test_peft_accuracies_compare_without_token_counts(tmp_path):
    imported(DATA / "peft", tmp_path / "a")
    release = read_releases([tmp_path / "a"])[0]
    values = release.launches["lora--llama-3.2-3B-rank32"][0].values
    assert "exact_match" in values and not {"token_accuracy", "eval_loss", "save_s", "train_loss"} & values.keys()


def test_command(tmp_path):
    arguments = ["import", str(DATA / "peft"), "--out", str(tmp_path / "run"), "--fact", "driver=550"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0 and "3 results" in result.output and "IA3" in result.output
    assert CliRunner().invoke(main, arguments).exit_code == 2  # never over other results
    assert CliRunner().invoke(main, [*arguments[:-1], "driver"]).exit_code == 2


@pytest.mark.parametrize(
    "name,text,message",
    [
        ("x.json", "{", "not JSON"), ("x.json", "{}", "no peft"), ("x.csv", "a,b\n1,2\n", "no fms-acceleration"),
        ("x.csv", "", "no fms-acceleration"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(RecordError, match=message):
        convert([tmp_path / name], None, {}, [])
