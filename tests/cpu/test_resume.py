"""Training goes on from the engine's own checkpoint as if it had never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.spec.suite import load_suite

from .conftest import write_suite
from .test_layouts import BF16, DDP, FULL, LORA, PP2, SP2, TP2, Z1, Z2, Z3

SIZES = {"global_batch_size": 8, "micro_batch_size": 2, "steps": 6, "lora_rank": 4}
Z0 = {"zero_stage": 0}
DEFAULT = {"full-z1-tp2": FULL | Z1 | TP2, "lora-z3": LORA | Z3}
SLOW: dict[str, tuple[int, dict[str, dict]]] = {
    "data-2": (2, {
        "full-ddp": FULL | DDP, "full-z0": FULL | Z0, "full-z1": FULL | Z1, "full-z2": FULL | Z2, "full-z3": FULL | Z3,
        "lora-ddp": LORA | DDP, "lora-z0": LORA | Z0, "lora-z1": LORA | Z1, "lora-z2": LORA | Z2,
    }),
    "model-2": (2, {
        "lora-z1-tp2": LORA | Z1 | TP2, "full-z3-tp2": FULL | Z3 | TP2,
        "full-z1-pp2": FULL | Z1 | PP2, "lora-z1-pp2": LORA | Z1 | PP2,
        "full-z3-pp2": FULL | Z3 | PP2, "lora-z3-pp2": LORA | Z3 | PP2,
        "full-z3-sp2": FULL | Z3 | SP2,
    }),
    # Only half precision tells whether the fp32 master weights were kept.
    "bf16-2": (2, {
        "bf16-full-ddp": BF16 | FULL | DDP, "bf16-lora-z1": BF16 | LORA | Z1, "bf16-full-z2": BF16 | FULL | Z2,
        "bf16-full-z3": BF16 | FULL | Z3, "bf16-full-z1-pp2": BF16 | FULL | Z1 | PP2,
        "bf16-lora-z1-tp2": BF16 | LORA | Z1 | TP2,
    }),
    "model-4": (4, {"full-z3-pp2-dp2": FULL | Z3 | PP2, "lora-z1-tp2-pp2": LORA | Z1 | TP2 | PP2}),
}  # fmt: skip


def check_resume(run_jobs, folder: Path, world_size: int, layouts: dict[str, dict]) -> None:
    """Run every case to its end and again from its middle, the latter in fresh processes too."""
    suite = write_suite(folder / "s.yaml", [{"id": name, **fields} for name, fields in layouts.items()], **SIZES)
    jobs = []
    for case in load_suite(str(suite)).cases:
        payload = {"case": case.model_dump(mode="json"), "folder": str(folder / case.id)}
        for entry in ("uninterrupted", "resumed"):
            name, function = f"{case.id}.{entry}", f"tests.cpu.resuming:{entry}"
            jobs.append({"name": name, "entry": function, "payload": payload, "timeout_s": 200})
    ends = run_jobs(world_size, jobs)
    for end in ends.values():
        assert end["status"] == "ok", (end["name"], end["reason"], end["log_tail"])
    for name in layouts:
        for rank in range(world_size):
            check_rank(name, {**ends[f"{name}.uninterrupted"]["files"], **ends[f"{name}.resumed"]["files"]}, rank)


def check_rank(name: str, files: dict[str, str], rank: int) -> None:
    """Losses and gradient norms after the checkpoint are those of the run that was not interrupted."""
    rows = {how: json.loads(files[f"rank{rank}/{how}.json"]) for how in ("uninterrupted", "rewound", "resumed")}
    losses, norms = zip(*rows["uninterrupted"], strict=True)
    for how in ("rewound", "resumed"):
        again, again_norms = zip(*rows[how], strict=True)
        assert again == pytest.approx(losses, abs=1e-6), (name, how, rank)
        assert again_norms == pytest.approx(norms, rel=1e-6), (name, how, rank)


def test_resuming_changes_nothing(run_jobs, tmp_path: Path) -> None:
    check_resume(run_jobs, tmp_path, 2, DEFAULT)


@pytest.mark.slow
@pytest.mark.parametrize("group", SLOW)
def test_resuming_more_layouts_changes_nothing(run_jobs, tmp_path: Path, group: str) -> None:
    check_resume(run_jobs, tmp_path, *SLOW[group])
