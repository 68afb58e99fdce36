"""Where changes sit."""

from __future__ import annotations

import pytest

from bench.analysis.attribution import phases, splits
from bench.analysis.compare import compare
from bench.analysis.metrics import choose
from bench.analysis.release import read_releases
from tests.unit.factories import make_case, make_rank, make_record, make_run, write_run

CASE = make_case("full-z2")


def held(tmp_path, change, launches=3):
    for name, edit in (("a", lambda record: record), ("b", change)):
        records = [edit(make_record(CASE, repeat=i + 1, gpu=True)) for i in range(launches)]
        write_run(tmp_path / name, make_run([CASE.id], gpu=True, repeats=launches), records, tables=False)
    releases = read_releases([tmp_path / "a", tmp_path / "b"])
    return compare(*releases, choose(None))


def test_waiting_for_data_is_named(tmp_path):
    def starved(record):
        timed = record.timed
        longer = timed.model_copy(update={
            "window_s": timed.window_s * 1.5, "data_wait_s": timed.data_wait_s + timed.window_s * 0.5,
            "step_s": [s * 1.5 for s in timed.step_s],
        })  # fmt: skip
        return record.model_copy(update={"timed": longer})

    found = splits(held(tmp_path, starved))
    assert [split.metric for split in found] == ["step_s"]
    name, share = found[0].carrier
    assert name == "data_wait" and share == pytest.approx(1)


def test_a_memory_peak_is_split_by_category_once_a_case(tmp_path):
    def fuller(record):
        ranks = [make_rank(CASE, rank, gpu=True, scale=1.0) for rank in range(2)]
        for rank in ranks:
            for phase in rank.memory.values():
                phase.allocated_peak_bytes += 6 * 2**30
                phase.reserved_peak_bytes += 6 * 2**30
            point = rank.memory_pass.phases["forward"]
            point.by_category["activations"] += 6 * 2**30
            point.peak_bytes += 6 * 2**30
        return record.model_copy(update={"ranks": ranks})

    found = splits(held(tmp_path, fuller))
    assert [(split.metric, split.carrier[0]) for split in found] == [("allocated_peak_bytes", "activations")]
    assert found[0].change == 6 * 2**30


def test_phases_are_compared_over_cases(tmp_path):
    slower = {"save": 1.0}
    result = held(tmp_path, lambda r: r.model_copy(update={"phases_s": {**r.phases_s, **slower}}))
    found = {change.phase: change for change in phases(result)}
    assert found["save"].ratio == pytest.approx(2) and found["build"].ratio == 1
    assert next(iter(found)) == "start"  # in the order of a launch
