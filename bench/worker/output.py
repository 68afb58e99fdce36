"""What one rank leaves in its job folder, written as soon as it is known."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from bench.records.columns import EVAL_COLUMNS, STEP_COLUMNS
from bench.records.folder import dump_json, write_atomic, write_record
from bench.records.schema import RankRecord
from bench.worker.engines.protocol import Engine
from bench.worker.loop import StepRow
from bench.worker.loss import Score
from bench.worker.meters import Meters


class Output:
    """Files of one rank: rank.json, steps.parquet, eval.parquet, and facts.json of what all ranks agree on."""

    def __init__(self, folder: Path, rank: int, meters: Meters) -> None:
        self.folder, self.meters = folder, meters
        self.record = RankRecord(rank=rank, host=socket.gethostname(), device=meters.device.name, mesh={}, phases_s={})
        self._facts: dict[str, Any] = {}
        self._scores: list[pd.DataFrame] = []

    def flush(self) -> None:
        """Write rank.json with every phase measured so far."""
        self.record.phases_s, self.record.memory = dict(self.meters.phases_s), dict(self.meters.memory)
        write_record(self.folder / "rank.json", self.record)

    def facts(self, **facts: BaseModel | dict | None) -> None:
        """Add to facts.json: parameters, model, data, checkpoint, verify."""
        for name, value in facts.items():
            self._facts[name] = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        write_atomic(self.folder / "facts.json", dump_json(self._facts))

    def steps(self, rows: Sequence[StepRow]) -> None:
        """Write steps.parquet and what the timed rows add up to."""
        frame = pd.DataFrame([dataclasses.asdict(row) for row in rows]).astype(STEP_COLUMNS)
        frame["start_s"] -= frame["start_s"].iloc[0]
        frame.to_parquet(self.folder / "steps.parquet", index=False)
        timed = [row for row in rows if row.timed]
        self.record.window_s = timed[-1].start_s + timed[-1].wall_s - timed[0].start_s
        inside = sum(row.engine_s + row.data_wait_s for row in timed)
        self.record.outside_engine_s = max(0.0, self.record.window_s - inside)
        self.record.skipped_steps = sum(row.skipped for row in rows)
        self.flush()

    def scores(self, moment: str, scores: Sequence[Score]) -> None:
        """Add held-out scores to eval.parquet."""
        rows = [
            {
                "moment": moment, "sample": s.row, "loss_sum": s.loss_sum, "loss_tokens": s.loss_tokens,
                "correct_tokens": s.correct_tokens, "exact": s.exact,
            }
            for s in scores
        ]  # fmt: skip
        self._scores.append(pd.DataFrame(rows, columns=list(EVAL_COLUMNS)).astype(EVAL_COLUMNS))
        pd.concat(self._scores).to_parquet(self.folder / "eval.parquet", index=False)

    def engine(self, engine: Engine) -> None:
        """Note the rank's place in the mesh, what it holds, and how long a pipeline stage computed."""
        self.record.pipeline = engine.pipeline_time(engine.case.warmup_steps)
        self.record.mesh, self.record.shards = dict(engine.mesh.coordinates), engine.shards()
        self.flush()
