"""The pipeline bubble from what the stages measured."""

from __future__ import annotations

import pytest

from bench.analysis.bubble import bubble
from bench.records.schema import PipelineTime
from tests.unit.factories import make_case, make_record


def test_the_bubble_is_what_the_longest_schedule_has_besides_computing() -> None:
    record = make_record(make_case())
    assert bubble(record) is None
    record = record.model_copy(update={"accumulation_steps": 4, "case": record.case.model_copy(update={"pp_size": 2})})
    for rank, schedule in zip(record.ranks, (8.0, 10.0), strict=False):
        rank.pipeline = PipelineTime(compute_s=6.0, schedule_s=schedule)
    found = bubble(record)
    assert found is not None and len(record.ranks) == 2
    assert found.measured == pytest.approx(0.4)
    assert found.ideal == pytest.approx(1 / 5)
