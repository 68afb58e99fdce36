"""This suite's loop against Hugging Face Trainer + DeepSpeed + PEFT: same model, data, precision, ranks.

    deepspeed --hostfile hostfiles/cpu2 --no_ssh_check --master_addr 127.0.0.1 benchmarks/vs_trainer.py [--help]

Both sides run in turn (A B A B …) on fresh processes of one launch; the ratio is taken pair by pair.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import click  # noqa: E402
from tabulate import tabulate  # noqa: E402

from bench.records.schema import RankRecord  # noqa: E402
from bench.run import PRELOAD, set_environment  # noqa: E402
from bench.spec.case import Case  # noqa: E402
from bench.supervisor.contract import Job  # noqa: E402
from bench.supervisor.launch import detect_launch  # noqa: E402
from bench.supervisor.session import Session  # noqa: E402

MODELS = {
    "tiny": {"model": "bench/assets/tiny", "seq_len": 64, "steps": 60, "warmup_steps": 10, "micro_batch_size": 8},
    "smollm2": {
        "model": "build/smollm2-135m-instruct", "seq_len": 128, "steps": 8, "warmup_steps": 2, "micro_batch_size": 4,
    },
}  # fmt: skip
STRATEGIES = {"ddp": {"engine": "ddp"}, **{f"zero{stage}": {"zero_stage": stage} for stage in (1, 2, 3)}}


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="tiny", show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Pairs per setting.")
@click.option("--only", default="", help="Keep settings whose name contains this, e.g. lora-zero2.")
@click.option("--local_rank", type=int, hidden=True)
def main(model: str, rounds: int, only: str, local_rank: int | None) -> None:
    """Measure and print one row per setting: median ratio over the pairs, with the range."""
    launch = detect_launch(os.environ)
    set_environment(launch)
    with Session(launch, Path(tempfile.gettempdir()), preload=(*PRELOAD, "benchmarks.trainer_arm")) as session:
        if not session.is_leader:
            session.follow()
            return
        rows = []
        for case in settings(model, launch.world_size):
            if only in case.id:
                rows.append(compare(session, case, rounds))
                print(tabulate(rows[-1:], headers="keys", tablefmt="github"), flush=True)
        print(tabulate(rows, headers="keys", tablefmt="github"))


def settings(model: str, world_size: int) -> list[Case]:
    """Full and LoRA under each strategy; DDP in fp32, where both sides do the same arithmetic."""
    common = {
        "data": "bench/assets/tiny/task.jsonl", "learning_rate": 1e-3, "lora_rank": 8, "save_checkpoint": False,
        "memory_steps": 0, "lr_warmup_steps": 2, "weight_decay": 0.01, **MODELS[model],
    }  # fmt: skip
    common["global_batch_size"] = 2 * common["micro_batch_size"] * world_size
    return [
        Case(id=f"{tuning}-{name}", tuning=tuning, precision="fp32" if name == "ddp" else "bf16", **common, **fields)
        for tuning in ("full", "lora")
        for name, fields in STRATEGIES.items()
    ]


def compare(session: Session, case: Case, rounds: int) -> dict[str, str]:
    """Run both sides in turn."""
    ours, theirs, outside = [], [], []
    for number in range(rounds):
        files = _run(session, case, f"{case.id}.ours{number}", "bench.worker.main:run")
        ranks = [RankRecord.model_validate_json(p.read_text()) for p in files.glob("rank*/rank.json")]
        ours.append(max(rank.window_s for rank in ranks))
        outside.append(max(rank.outside_engine_s / rank.window_s for rank in ranks))
        files = _run(session, case, f"{case.id}.trainer{number}", "benchmarks.trainer_arm:run")
        theirs.append(max(json.loads(p.read_text())["window_s"] for p in files.glob("rank*/trainer.json")))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    timed = case.steps - case.warmup_steps
    return {
        "setting": f"{case.id} {case.precision}",
        "ours ms/step": f"{1e3 * statistics.median(ours) / timed:.1f}",
        "Trainer ms/step": f"{1e3 * statistics.median(theirs) / timed:.1f}",
        "ours / Trainer": f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})",
        "loop outside engine": f"{100 * statistics.median(outside):.2f} %",
    }


def _run(session: Session, case: Case, name: str, entry: str) -> Path:
    payload = {"case": case.model_dump(mode="json"), "checkpoint_dir": ""}
    end = session.run(Job(name, entry, payload, timeout_s=case.timeout_s))
    if end.status != "ok":
        raise SystemExit(f"{name} ended {end.status}: {end.reason}\n{end.log_tail}")
    return end.files


if __name__ == "__main__":
    main()
