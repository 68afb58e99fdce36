"""Synthetic runs that several tests of the report share."""

from __future__ import annotations

from pathlib import Path

from tests.unit.factories import make_case, make_data, make_plan, make_record, make_run, write_run

PLANNED = ["full-z2", "lora-z2", "full-z3", "lora-z3", "full-z2-tp2", "lora-z2-offload", "partial", "never"]


def mixed_run(folder: Path, gpu: bool = False) -> Path:
    """All six statuses, two repeats, a case without a record, partial records, Chinese names with pipes."""
    full, lora = make_case(), make_case(tuning="lora")
    records = [
        make_record(full, gpu=gpu, exact=50, plan=make_plan(gpu)),
        make_record(full, gpu=gpu, repeat=2, step_s=0.11, exact=52, plan=make_plan(gpu, 1.2)),
        make_record(
            lora, gpu=gpu, step_s=0.07, scale=0.6, exact=44, remarks=["备注|含 `反引号`\n与换行"],
            plan=make_plan(gpu, 0.6),
        ),
        make_record(
            lora, "oom", repeat=2, reason="CUDA out of memory | tried 2 GiB", failing_rank=1,
            log_tail="Traceback\n```\nRuntimeError: ```` |", plan=make_plan(gpu, 0.6),
        ),
        make_record(make_case(zero_stage=3), "timeout", plan=None, missing={"plan": "unknown shape: model | x"}),
        make_record(make_case(tuning="lora", zero_stage=3), "crashed", failing_rank=0, log_tail="Killed"),
        make_record(make_case("full-z2-tp2", tp_size=2), "unsupported", mesh=None, accumulation_steps=None),
        make_record(make_case("lora-z2-offload", "lora", offload_optimizer="cpu"), "skipped", plan=make_plan(gpu)),
        make_record(
            make_case("partial", zero_stage=1, data="数据/中文|名.jsonl"), ranks=[], evaluation={}, checkpoint=None,
            phases_s={}, plan=make_plan(gpu), data=make_data(source="数据/中文|名.jsonl", fingerprint="aa" * 32),
            losses=[2.5, None, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5],
            missing={"evaluation": "eval_samples is 0", "checkpoint": "save_checkpoint is false"},
        ),
    ]  # fmt: skip
    run = make_run(PLANNED, gpu, suite="中文|套件", repeats=2, complete=False, interrupted="SIGINT | 键盘")
    return write_run(folder, run, records)
