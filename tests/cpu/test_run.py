"""bench/run.py as its users meet it: outcomes, resuming, interruptions, launchers, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.records.folder import case_folder
from bench.spec.paths import ROOT

from .conftest import finish, free_port, start, write_suite

SMALL = {
    "steps": 4, "warmup_steps": 1, "global_batch_size": 4, "micro_batch_size": 1, "tuning": "lora", "engine": "ddp",
    "eval_samples": 4, "memory_steps": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def mixed(launch, tmp_path_factory: pytest.TempPathFactory):
    """One launch whose cases end in many ways."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.yaml"
    cases = [
        {"id": "good"},
        {"id": "odd", "global_batch_size": 5},
        {"id": "targets", "target_modules": ["q_proj", "nonsense"]},
        {"id": "late", "steps": 4000, "timeout_s": 6},
        {"id": "fp16", "precision": "fp16"},
        {"id": "diverges", "learning_rate": 1e30, "max_grad_norm": 0.0, "memory_steps": 0},
        {"id": "last", "tuning": "full", "engine": "deepspeed", "zero_stage": 1, "save_checkpoint": False},
    ]
    return launch(2, write_suite(path, cases, **SMALL))


def test_every_case_ends_with_a_status_and_a_reason(mixed) -> None:
    assert mixed.code == 0 and mixed.run.complete, mixed.output
    status = {name: record.status for name, record in mixed.cases.items()}
    assert status == {
        "good": "ok", "odd": "unsupported", "targets": "unsupported", "late": "timeout", "fp16": "unsupported",
        "diverges": status["diverges"], "last": "ok",
    }  # fmt: skip
    reasons = {name: str(record.reason) for name, record in mixed.cases.items()}
    assert "multiple" in reasons["odd"]
    assert "'nonsense'" in reasons["targets"] and "q_proj" in reasons["targets"] and "down_proj" in reasons["targets"]
    assert "bf16, fp32" in reasons["fp16"]


def test_a_timeout_keeps_the_log_and_names_the_phase(mixed) -> None:
    late = mixed.cases["late"]
    assert late.timed is None and "timed" in late.missing
    assert "step" in str(late.reason) or "timed" in str(late.reason)
    assert (case_folder(mixed.folder, "late", 1) / "rank1.log").is_file()


def test_numbers_that_are_not_finite_are_null_with_a_reason(mixed) -> None:
    record = mixed.cases["diverges"]
    text = (case_folder(mixed.folder, "diverges", 1) / "case.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert None in record.losses and "not finite" in record.missing["losses"]


def test_the_report_shows_what_ran_and_what_failed(mixed) -> None:
    for name in ("report.md", "report.zh.md"):
        text = (mixed.folder / name).read_text(encoding="utf-8")
        for case_id in mixed.cases:
            assert case_id in text
        assert "nonsense" in text
    assert len(list((mixed.folder / "figures").rglob("*.png"))) >= 6


def test_resuming_redoes_what_is_broken_and_keeps_the_rest(launch, mixed, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(mixed.folder, out)
    (case_folder(out, "good", 1) / "case.json").write_text('{"schema_version": 1, "half')
    before = json.loads((case_folder(out, "last", 1) / "case.json").read_text())
    suite = tmp_path / "mixed.yaml"
    suite.write_text(mixed.run.suite_text)
    refused = launch(2, suite, out=out)
    assert refused.code == 2 and "--resume" in refused.output
    done = launch(2, suite, "--resume", "--cases", "good,last", out=out)
    assert done.code == 0, done.output
    assert done.cases["good"].status == "ok"
    assert json.loads((case_folder(out, "last", 1) / "case.json").read_text()) == before
    assert done.run.planned == mixed.run.planned


def wait_for(condition, ranks: list[subprocess.Popen], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks)
        time.sleep(0.1)


def workers(ranks: list[subprocess.Popen]) -> list[psutil.Process]:
    """Worker processes of a launch with its own node server, which rank 0 started."""
    found = []
    for server in psutil.Process(ranks[0].pid).children():
        found += server.children()
    return found


@pytest.mark.parametrize("victim", ["worker", "leader"])
def test_kills_and_interrupts_lose_nothing_and_leave_nobody(tmp_path: Path, victim: str) -> None:
    long = {"id": "long", "steps": 3000, "warmup_steps": 1}
    suite = write_suite(tmp_path / "s.yaml", [{"id": "first"}, long, {"id": "third", "seed": 1}], **SMALL)
    out = tmp_path / "out"
    ranks = start(2, ["--suite", str(suite), "--out", str(out)], None, tmp_path)
    try:
        wait_for(lambda: (case_folder(out, "first", 1) / "case.json").exists() and len(workers(ranks)) == 2, ranks, 180)
        time.sleep(2.0)  # well inside the long case
        children = [p for rank in ranks for p in psutil.Process(rank.pid).children(recursive=True)]
        if victim == "worker":
            workers(ranks)[1].send_signal(signal.SIGKILL)
        else:
            ranks[0].send_signal(signal.SIGINT)
        done = finish(ranks, tmp_path, out)
    finally:
        for rank in ranks:
            rank.kill()
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not alive, alive
    assert done.cases["first"].status == "ok"
    if victim == "worker":
        assert done.code == 0 and done.run.complete, done.output
        assert done.cases["long"].status == "crashed" and "SIGKILL" in str(done.cases["long"].reason)
        assert done.cases["long"].failing_rank in (0, 1) and done.cases["third"].status == "ok"
    else:
        assert done.code == 130 and not done.run.complete and done.run.interrupted, done.output
        assert "long" not in done.cases and (out / "report.md").is_file()


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun", "mpirun"])
def test_every_launcher_starts_the_same_entry_point(node_server: Path, tmp_path: Path, launcher: str) -> None:
    suite = write_suite(tmp_path / "s.yaml", [{"id": "only"}], **SMALL)
    bin_folder, port = Path(sys.executable).parent, str(free_port())
    prefix = {
        "deepspeed": ["deepspeed", "--hostfile", "hostfiles/cpu2", "--no_ssh_check", "--master_addr", "127.0.0.1",
                      "--master_port", port],
        "torchrun": ["torchrun", "--nproc-per-node", "2", "--master-port", port],
        "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable],
    }[launcher]  # fmt: skip
    options = ["--suite", str(suite), "--out", str(tmp_path / "o")]
    command = [str(bin_folder / prefix[0]), *prefix[1:], "bench/run.py", *options]
    environment = {**os.environ, "FTBENCH_NODE_SERVER": str(node_server), "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "o" / "run.json").read_text())
    assert record["complete"] and record["world_size"] == 2 and record["launcher"] == launcher
    assert json.loads((case_folder(tmp_path / "o", "only", 1) / "case.json").read_text())["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--suite", "nonsense"], ["'nonsense'", "tiny"]),
        (["--suite", "tiny", "--cases", "zzz*"], ["zzz*", "full"]),
        (["--suite", "tiny", "--set", "stepz=3"], ["stepz", "steps"]),
        (["--suite", "tiny", "--set", "data=./nowhere.jsonl"], ["no case of tiny can run", "nowhere.jsonl"]),
        (["--suite", "tiny", "--set", "global_batch_size=3"], ["3", "multiple"]),
        (["--suite", "tiny", "--out", "README.md/x"], ["--out"]),
        (["--suite", "tiny", "--resume", "--out", "/tmp/ftbench-nothing-here"], ["--resume", "no run"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], parts: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "bench/run.py", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "MASTER_PORT": str(free_port())},
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("ftbench: ")]
    assert len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
    for part in parts:
        assert part in errors[0]


def test_listing_runs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "bench/run.py", "--suite", "tiny", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "lora" in done.stdout
