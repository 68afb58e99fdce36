"""Every schema version that ever was: loads, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.analysis.release import read_releases
from bench.errors import RecordError
from bench.records import migrations
from bench.records.folder import read_cases, read_run
from bench.records.schema import SCHEMA_VERSION
from bench.spec.paths import ROOT

VERSIONS = sorted((ROOT / "tests" / "data").glob("schema-v*"))


def test_the_present_version_has_a_sample():
    assert f"schema-v{SCHEMA_VERSION}" in [path.name for path in VERSIONS]


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)
def test_samples_load_or_are_refused_by_name(folder: Path):
    version = int(folder.name.removeprefix("schema-v"))
    try:
        release = read_releases([folder])[0]
    except RecordError as error:
        assert f"schema_version {version}" in str(error)
        assert version != SCHEMA_VERSION
    else:
        launches = [launch for same in release.launches.values() for launch in same]
        assert {launch.status for launch in launches} == {"ok", "oom"}


@pytest.mark.parametrize("folder", [VERSIONS[0], ROOT / "results" / "reference-tiny-cpu2"], ids=lambda path: path.name)
def test_version_1_has_no_prediction_and_says_so(folder: Path):
    assert read_run(folder).schema_version == SCHEMA_VERSION
    for record in read_cases(folder):
        assert record.plan is None and record.missing["plan"] == "recorded before cases stored their prediction"


def test_a_damaged_record_of_version_1_is_left_to_the_reader():
    raw = migrations.migrate({"schema_version": 1, "case": {}, "missing": None}, Path("x"))
    assert raw == {"schema_version": SCHEMA_VERSION, "case": {}, "missing": None}


def test_the_present_version_keeps_its_prediction():
    records = {record.status: record for record in read_cases(VERSIONS[-1])}
    assert records["ok"].plan.phases["forward"].peak_bytes > 0 and records["oom"].missing["plan"]


def test_steps_lead_from_version_to_version(monkeypatch):
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(migrations, "STEPS", {1: lambda raw: raw | {"one": 1}, 2: lambda raw: raw | {"two": 2}})
    assert migrations.migrate({"schema_version": 1}, Path("x")) == {"schema_version": 3, "one": 1, "two": 2}
    assert migrations.readable() == "1, 2, 3"


@pytest.mark.parametrize("raw", [{}, {"schema_version": None}, {"schema_version": 99}, {"schema_version": True}, []])
def test_what_has_no_known_version_is_refused(raw):
    with pytest.raises(RecordError, match="schema_version"):
        migrations.migrate(raw, Path("x"))


def test_a_version_without_a_way_on_is_refused(monkeypatch):
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(migrations, "STEPS", {})
    with pytest.raises(RecordError, match="schema_version 1 is refused"):
        migrations.migrate({"schema_version": 1}, Path("x"))
