"""The report keeps every case, gives reasons for gaps, and survives partial records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import get_args

import pandas as pd
import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.errors import RecordError
from bench.records.folder import case_folder
from bench.records.schema import CaseRecord
from bench.report import cases, document, facts, headline, memory
from bench.report.figures import loss
from bench.report.source import load
from bench.report.summary import ranks, summary
from bench.report.words import Words
from bench.report.write import write_report
from tests.unit.factories import make_case, make_record, make_run, write_run
from tests.unit.report.runs import PLANNED, mixed_run

STATUSES = {"ok", "oom", "timeout", "crashed", "unsupported", "skipped", "not run"}
EN, ZH = Words("en"), Words("zh")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A folder with everything that can go wrong, rendered once."""
    folder = mixed_run(tmp_path_factory.mktemp("runs") / "mixed")
    return folder, write_report(folder)


def rows(markdown: str) -> list[list[str]]:
    """Cells of the rows of pipe tables, split at pipes that are not escaped."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def cell(markdown: str, row: str, column: int) -> str:
    return next(cells for cells in rows(markdown) if cells[0].startswith(row))[column]


def test_every_file_is_written(mixed):
    folder, written = mixed
    names = {path.relative_to(folder).as_posix() for path in written}
    figures = {f"figures/{lang}/{name}.png" for lang in ("en", "zh") for name in document.FIGURES}
    assert names == {"report.md", "report.zh.md", "summary.csv"} | figures
    assert all(path.stat().st_size > 500 for path in written)


@pytest.mark.parametrize("name", ["report.md", "report.zh.md"])
def test_all_cases_and_statuses_are_in_the_tables(mixed, name):
    text = (mixed[0] / name).read_text(encoding="utf-8")
    words = EN if name == "report.md" else ZH
    section = cases.all_cases(load(mixed[0]), words)
    assert section in text
    labels = [cells[0] for cells in rows(section)[2:]]
    assert labels == [f"{case} #{repeat}" for case in PLANNED for repeat in (1, 2)]
    shown = {cells[1] for cells in rows(section)[2:]}
    assert shown == {words(f"status_{status.replace(' ', '_')}") for status in STATUSES}


@pytest.mark.parametrize("name", ["report.md", "report.zh.md"])
def test_tables_are_rectangular_and_nothing_leaks(mixed, name):
    text = (mixed[0] / name).read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(cells) for cells in rows(block)}) == 1, block
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)


def test_both_languages_have_the_same_structure(mixed):
    english, chinese = ((mixed[0] / n).read_text(encoding="utf-8") for n in ("report.md", "report.zh.md"))
    for pattern in (r"^#+ ", r"^\|", r"^```", r"^!\[", r"^[¹²³⁴⁵⁶⁷⁸⁹]"):
        assert len(re.findall(pattern, english, re.M)) == len(re.findall(pattern, chinese, re.M)), pattern


def test_opening_names_what_is_absent(mixed):
    text = (mixed[0] / "report.md").read_text(encoding="utf-8")
    assert "9 of 16 planned launches" in text and "SIGINT \\| 键盘" in text
    assert "`never #1`, `never #2`" in text


def test_headline_shows_mean_and_range_of_repeats_and_the_failed_launch(mixed):
    section = headline.section(load(mixed[0]), EN)
    assert "(2 launches, 2 ok, seeds 0)" in section and "`lora-z2 #2: oom`" in section
    assert cell(section, "held-out exact match", 1) == "79.7 % (78.1 %–81.2 %)"
    assert cell(section, "held-out exact match", 2) == "68.8 % (56.6 %–78.8 %)"
    assert cell(section, "held-out exact match", 3) == "0.86× (−10.9 pp)"


def headline_of(tmp_path, records, **run):
    planned = run.pop("planned", [r.case.id for r in records])
    named = {"full": "full-z2", "lora": "lora-z2"}
    return headline.section(load(write_run(tmp_path, make_run(planned, headline=named, **run), records)), EN)


def test_headline_says_the_status_of_a_failed_arm(tmp_path):
    records = [make_record(status="oom", reason="no room"), make_record(make_case(tuning="lora"))]
    section = headline_of(tmp_path, records)
    assert cell(section, "samples/s", 1) == "oom¹" and "¹ oom: no room" in section
    assert cell(section, "samples/s", 3) == "Full: oom"


def test_headline_says_that_an_arm_never_ran(tmp_path):
    section = headline_of(tmp_path, [make_record()], planned=["full-z2", "lora-z2"])
    assert cell(section, "samples/s", 2) == "not run¹"
    assert cell(section, "samples/s", 3) == "LoRA: not run"


def test_headline_falls_back_to_the_first_equal_pair_and_says_so(tmp_path):
    records = [
        make_record(make_case(zero_stage=1), "oom"), make_record(make_case(zero_stage=3)),
        make_record(make_case(tuning="lora", zero_stage=2)), make_record(make_case(tuning="lora", zero_stage=3)),
    ]  # fmt: skip
    section = headline_of(tmp_path, records)
    assert "no pair of headline cases" in section
    assert "Full: `full-z3`" in section and "LoRA: `lora-z3`" in section
    assert "Beyond the tuning method" not in section


def test_headline_names_other_differences(tmp_path):
    records = [make_record(), make_record(make_case("lora-z2", "lora", zero_stage=2, seq_len=256))]
    assert "`seq_len (128 / 256)`" in headline_of(tmp_path, records)


def test_headline_joins_cases_that_differ_only_in_seed(tmp_path):
    records = [make_record(make_case(f"full-s{s}", seed=s), exact=40 + s) for s in range(3)]
    records += [make_record(make_case(tuning="lora"))]
    records[0] = make_record(make_case(), exact=40)
    section = headline_of(tmp_path, records)
    assert "(3 launches, 3 ok, seeds 0, 1, 2)" in section
    assert cell(section, "held-out exact match", 1) == "64.1 % (62.5 %–65.6 %)"


def test_per_rank_memory_names_the_fullest_rank_and_every_meter(tmp_path):
    results = load(write_run(tmp_path, make_run(["full-z2"], gpu=True), [make_record(gpu=True)]))
    section = memory.section(results, EN)
    spread, first = rows(section)[2], rows(section)[5]
    assert spread == ["full-z2", "allocated", "77.61 GiB", "0", "70.56 GiB", "1.10×"]
    assert first[:6] == ["full-z2", "0", "77.61 GiB", "93.13 GiB", "93.62 GiB", "77.61 GiB"]


@pytest.mark.parametrize(
    "field", [n for n, f in CaseRecord.model_fields.items() if type(None) in get_args(f.annotation)]
)
def test_a_null_field_breaks_nothing(tmp_path, field):
    render_without(tmp_path, **{field: None})


@pytest.mark.parametrize("field", ["ranks", "losses", "grad_norms", "evaluation", "phases_s"])
def test_an_empty_field_breaks_nothing(tmp_path, field):
    render_without(tmp_path, **{field: {} if field in ("evaluation", "phases_s") else []})


def test_ranks_without_memory_break_nothing(tmp_path):
    whole = make_record()
    bare = [
        r.model_copy(update={"memory": {}, "memory_pass": None, "shards": None, "window_s": None}) for r in whole.ranks
    ]
    text = render_without(tmp_path, ranks=bare)
    assert "no memory pass was recorded" in text


def test_zero_counts_break_nothing(tmp_path):
    whole = make_record()
    nothing = whole.evaluation["after"].model_copy(update={"samples": 0, "loss_tokens": 0})
    timed = whole.timed.model_copy(update={"window_s": 0.0, "step_s": [], "padded_tokens": 0})
    render_without(tmp_path, evaluation={"after": nothing}, timed=timed)


def render_without(tmp_path, **fields) -> str:
    """Render a run of one changed ok case beside a whole one, in both languages and as csv."""
    record = make_record().model_copy(update=fields)
    results = load(
        write_run(tmp_path, make_run(["full-z2", "lora-z2"]), [record, make_record(make_case(tuning="lora"))])
    )
    assert summary(results).shape[0] == 2
    texts = [document.render(results, words, {}) for words in (EN, ZH)]
    assert "None" not in texts[0] and texts[1]
    return texts[0]


def test_an_empty_folder_of_a_run_that_just_began(tmp_path):
    write_report(write_run(tmp_path, make_run(["a", "b"], complete=False, finished_at=None), []))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "0 of 2 planned launches" in text and "No figure" in text


def test_a_damaged_record_is_listed_with_the_reason(tmp_path):
    folder = write_run(
        tmp_path, make_run(["full-z2", "lora-z2"]), [make_record(), make_record(make_case(tuning="lora"))]
    )
    (case_folder(folder, "lora-z2", 1) / "case.json").write_text('{"schema_version": 1, "loss": NaN}')
    (case_folder(folder, "full-z2", 1) / "steps.parquet").write_bytes(b"cut off")
    results = load(folder)
    assert cell(cases.all_cases(results, EN), "lora-z2", 1) == "unreadable"
    assert "NaN is not JSON" in document.render(results, EN, {})
    assert loss.draw(results, EN) is not None


def test_failures_hold_fences_and_remarks_are_deduplicated(mixed):
    failures = facts.failures(load(mixed[0]), EN)
    assert "`````text\nTraceback\n```\nRuntimeError: ```` |\n`````" in failures
    assert "Failing rank: 1" in failures and "### lora-z2-offload #1 — skipped" in failures
    assert "备注\\|含 \\`反引号\\` 与换行 (lora-z2 #1)" in facts.remarks(load(mixed[0]), EN)


def test_remarks_of_several_cases_appear_once(tmp_path):
    records = [make_record(make_case(zero_stage=z), remarks=["same caveat"]) for z in (1, 2)]
    text = facts.remarks(load(write_run(tmp_path, make_run(["full-z1", "full-z2"]), records)), EN)
    assert text == "- same caveat (all)"


def test_summary_has_a_row_for_every_launch_and_numbers_unrounded(mixed):
    frame = pd.read_csv(mixed[0] / "summary.csv")
    assert list(zip(frame["case"], frame["repeat"])) == [(case, n) for case in PLANNED for n in (1, 2)]
    assert set(frame["status"]) == STATUSES
    assert frame.loc[0, "samples_per_s"] == pytest.approx(48 / 0.612, rel=1e-12)
    assert frame.loc[0, "exact_match_share"] == 50 / 64
    partial = frame[frame["case"] == "partial"].iloc[0]
    assert pd.isna(partial["eval_loss_nats"]) and "evaluation: eval_samples is 0" in partial["missing"]
    assert "数据/中文|名.jsonl" in set(frame["data_source"])


def test_ranks_table_is_tidy(mixed):
    frame = ranks(load(mixed[0]))
    assert len(frame) == 6 and frame["traced_weights_bytes"].notna().all()


def test_export_writes_every_format(mixed, tmp_path):
    for kind in ("csv", "json", "parquet"):
        outcome = CliRunner().invoke(main, ["export", str(mixed[0]), "--format", kind, "--out", str(tmp_path)])
        assert outcome.exit_code == 0, outcome.output
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    assert set(steps["case"]) == {"full-z2", "lora-z2", "partial"} and len(steps) == 4 * 8 * 2
    assert len(json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))) == 16
    assert len(pd.read_csv(tmp_path / "eval.csv")) == 3 * 128


def test_no_folder_is_one_line_and_exit_code_2(tmp_path):
    done = CliRunner().invoke(main, ["report", str(tmp_path / "none")])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    with pytest.raises(RecordError):
        load(tmp_path / "none")


def test_the_report_imports_no_torch():
    code = "import sys, bench.report.write, bench.cli.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_chinese_report_has_chinese_headings(mixed):
    text = (mixed[0] / "report.zh.md").read_text(encoding="utf-8")
    assert all(re.search("[\u4e00-\u9fff]", heading) for heading in re.findall(r"^## .*", text, re.M))
