"""What only a GPU can show; one short launch. Run with: python -m pytest tests/gpu (skipped without a GPU)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from bench.records.environment import query_gpus
from bench.records.folder import read_cases, read_run
from bench.spec.paths import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not query_gpus("name"), reason="no NVIDIA GPU on this machine"),
]
DEFAULTS = {
    "model": "bench/assets/tiny", "data": "bench/assets/tiny/task.jsonl", "seq_len": 64, "learning_rate": 1e-3,
    "global_batch_size": 32, "micro_batch_size": 16, "steps": 12, "warmup_steps": 4, "eval_samples": 16,
    # Large enough for the allocator's rounding to vanish beside it.
    "weights": "random", "model_overrides": {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 4096,
                                             "num_attention_heads": 16, "num_key_value_heads": 8},
}  # fmt: skip
CASES = [
    {"id": f"{tuning}-{name}-{precision}", "tuning": tuning, "precision": precision, **fields}
    for precision in ("bf16", "fp16")
    for tuning in ("full", "lora")
    for name, fields in (("ddp", {"engine": "ddp"}), ("z3", {"zero_stage": 3}))
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    with (folder / "suite.yaml").open("w", encoding="utf-8") as file:
        YAML().dump({"description": "gpu", "defaults": DEFAULTS, "cases": CASES}, file)
    command = [sys.executable, "bench/run.py", "--suite", str(folder / "suite.yaml"), "--out", str(folder / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def test_every_case_runs_and_what_it_saved_loads(run: Path) -> None:
    assert read_run(run).environment.device_kind == "cuda"
    for record in read_cases(run):
        assert record.status == "ok", (record.case.id, record.reason)
        assert record.checkpoint is not None and record.checkpoint.verified, record.checkpoint


def test_three_meters_are_read_and_ordered(run: Path) -> None:
    for record in read_cases(run):
        timed = record.ranks[0].memory["timed"]
        assert 0 < timed.allocated_peak_bytes <= timed.reserved_peak_bytes <= timed.device_used_bytes


def test_the_traced_peak_matches_the_allocators_counter(run: Path) -> None:
    for record in read_cases(run):
        traced = record.ranks[0].memory_pass
        assert traced is not None and traced.status == "ok"
        assert traced.flagged is None, (record.case.id, traced.flagged)
