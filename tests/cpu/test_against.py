"""Two environments take turns on the same ranks, and their folders can be compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.records.folder import read_cases
from bench.spec.paths import ROOT

from .conftest import write_suite


def test_two_environments_take_turns_launch_by_launch(launch, tmp_path: Path) -> None:
    case = {"id": "only", "tuning": "lora", "engine": "ddp", "global_batch_size": 4, "micro_batch_size": 2}
    suite = write_suite(tmp_path / "s.yaml", [case], steps=3, warmup_steps=1, memory_steps=0, save_checkpoint=False)
    done = launch(1, suite, "--repeats", "2", "--against", sys.prefix)
    assert done.code == 0, done.output
    other = Path(f"{done.folder}-against")
    both = [*read_cases(done.folder), *read_cases(other)]
    assert [record.status for record in both] == ["ok"] * 4, [record.reason for record in both]
    order = [line.split(":")[0] for line in done.output.splitlines() if line.startswith("[")]
    assert ["-against" in line for line in order] == [False, True, False, True]
    compared = subprocess.run(
        [sys.executable, "-m", "bench", "compare", str(done.folder), str(other), "--out", str(tmp_path / "c")],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "not comparable" not in compared.stdout and compared.returncode in (0, 3), compared.stdout


def test_an_environment_that_is_none_is_named(launch, tmp_path: Path) -> None:
    done = launch(1, "tiny", "--against", str(tmp_path))
    assert done.code == 2 and "--against" in done.output and "virtual environment" in done.output
