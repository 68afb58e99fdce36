"""The comparison as people and programs see it: command, files, languages, names, exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.records.folder import case_folder
from bench.records.schema import SCHEMA_VERSION
from bench.report.compare_words import WORDS
from bench.spec.paths import ROOT
from tests.unit.analysis.test_compare import folder
from tests.unit.factories import make_case, make_environment


def run(*arguments: object):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    root = tmp_path_factory.mktemp("sides")
    newer = make_environment(versions={**make_environment().versions, "deepspeed": "0.20.0"})
    return folder(root / "old", tables=True), folder(root / "new", factor=1.2, environment=newer, tables=True)


def test_words_exist_in_both_languages_with_the_same_placeholders():
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, text in WORDS["en"].items():
        assert set(re.findall(r"{(\w+)}", text)) == set(re.findall(r"{(\w+)}", WORDS["zh"][key])), key


def test_files_and_exit_code(sides, tmp_path):
    result = run(*sides, "--out", tmp_path)
    assert result.exit_code == 1, result.output
    english, chinese = ((tmp_path / name).read_text(encoding="utf-8") for name in ("compare.md", "compare.zh.md"))
    assert "deepspeed | 0.19.8 | 0.20.0" in re.sub(" +", " ", english) and "变差" in chinese
    for text in (english, chinese):
        for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
            assert (tmp_path / path).stat().st_size > 5000
    rows = list(csv.DictReader((tmp_path / "compare.csv").open(encoding="utf-8")))
    data = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert len(rows) == len(data["rows"]) and data["exit_code"] == 1
    slow = next(row for row in data["rows"] if row["metric"] == "step_s")
    assert slow["verdict"] == "regressed" and isinstance(slow["ratio"], float)
    assert float(next(row for row in rows if row["metric"] == "step_s")["ratio"]) == slow["ratio"]
    assert "± 2 %" in result.output and "unchanged" in result.output  # thresholds are printed


def test_rows_are_sorted_by_number_not_by_text(tmp_path):
    factors = {"a": 1.5, "b": 10.5, "c": 9.5}
    cases = [make_case(name) for name in factors]
    for side in ("old", "new"):
        folder(tmp_path / side, cases=cases, keep=lambda r, s=side: r if s == "old" else _slower(r, factors[r.case.id]))
    result = run(tmp_path / "old", tmp_path / "new", "--metrics", "step_s", "--no-figures", "--out", tmp_path / "o")
    assert re.findall(r"^([abc]) +step time", result.output, re.MULTILINE) == ["b", "c", "a"]


def _slower(record, factor):
    timed = record.timed.model_copy(update={"step_s": [s * factor for s in record.timed.step_s]})
    return record.model_copy(update={"timed": timed})


def test_codes_of_inconclusive_and_not_comparable(tmp_path):
    one = folder(tmp_path / "one", 1)
    for option, code in ((None, 3), ("ok", 0), ("fail", 1)):
        extra = ["--inconclusive", option] if option else []
        assert run(one, one, "--no-figures", "--out", tmp_path / "o", *extra).exit_code == code
    other = folder(tmp_path / "other", 1, cases=[make_case("full-z2", seq_len=64), make_case("lora-z2", "lora")])
    result = run(one, other, "--no-figures", "--out", tmp_path / "o")
    assert result.exit_code == 2 and "seq_len" in result.output


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["--metrics", "speed"], "'speed' is not known"), (["--min-effect", "x"], "--min-effect"),
        (["--axis", "nonsense"], "'nonsense' is nothing that was recorded"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_code_2(sides, tmp_path, arguments, text):
    result = run(*sides, "--out", tmp_path, *arguments)
    assert result.exit_code == 2 and text in result.output and "Traceback" not in result.output


def test_an_unknown_schema_version_is_refused_by_name(sides, tmp_path):
    bad = folder(tmp_path / "bad", 1)
    path = case_folder(bad, "full-z2", 1) / "case.json"
    path.write_text(path.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99'))
    result = run(sides[0], bad, "--out", tmp_path / "o")
    assert result.exit_code == 2 and "schema_version 99" in result.output


def test_tables_survive_hostile_text_and_output_is_utf8_everywhere(tmp_path):
    old, new = tmp_path / "旧|版\n本", tmp_path / "新 `版` *本*"
    folder(old, 1)
    folder(new, 1, keep=lambda r: r.model_copy(update={"status": "crashed", "reason": "坏|了\n第二行 `x`"}))
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    arguments = [str(old), str(new), "--out", str(tmp_path / "o"), "--no-figures"]
    done = subprocess.run([sys.executable, "-m", "bench", "compare", *arguments],
                          cwd=ROOT, env=environment, capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "坏|了 第二行" in done.stdout.decode("utf-8")
    text = (tmp_path / "o" / "compare.md").read_text(encoding="utf-8")
    assert "坏\\|了 第二行" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_a_series_gives_trend_tables_and_figures(tmp_path):
    for name, factor in (("v1", 1.0), ("v2", 1.0), ("v3", 1.3)):
        folder(tmp_path / name, factor=factor)
    result = run(*(tmp_path / f"v{i}" for i in (1, 2, 3)), "--out", tmp_path / "o", "--metrics", "step_s")
    assert result.exit_code == 1
    text = (tmp_path / "o" / "compare.md").read_text(encoding="utf-8")
    assert "## Trend" in text and "**▲ 1." in text
    assert (tmp_path / "o" / "figures" / "zh" / "trend-step_s.png").is_file()
    lines = json.loads((tmp_path / "o" / "compare.json").read_text())["trends"][0]["lines"]
    assert [line["changes"] for line in lines] == [[2], [2]]


def test_the_default_target_is_beside_the_candidate(tmp_path):
    old, new = folder(tmp_path / "old"), folder(tmp_path / "new")
    assert run(old, new, "--no-figures").exit_code == 0
    assert (new / "compare-old" / "compare.md").is_file()
    assert run(old, new, "--no-figures").exit_code == 0  # what it wrote is no result
