"""Job functions of the resume tests: train, save half way, and go on from what was saved."""

from __future__ import annotations

import json
from pathlib import Path

import torch.distributed as dist
from transformers import AutoTokenizer

from bench.jobfolder import out_folder, read_job
from bench.spec import ds_config
from bench.spec.case import Case
from bench.spec.paths import local_path
from bench.worker.batches import Feed, global_loss_tokens, train_loader
from bench.worker.data import build_dataset
from bench.worker.device import join_process_group, pick_device, seed_all
from bench.worker.engines.build import build_engine
from bench.worker.optimizer import learning_rate
from bench.worker.parallel.build import build
from bench.worker.parallel.mesh import build_mesh


class _Training:
    """One rank's engine and data."""

    def __init__(self, case: Case) -> None:
        self.case, device = case, pick_device()
        join_process_group(device, case.timeout_s)
        world_size = dist.get_world_size()
        config = ds_config.resolve(case, world_size) if case.engine == "deepspeed" else None
        seed_all(case.seed, 0)
        mesh = build_mesh(case)
        self.engine = build_engine(case, build(case, device, config, mesh), device, mesh, config)
        self.tokenizer = AutoTokenizer.from_pretrained(str(local_path(case.model)))
        self.train = build_dataset(case, self.tokenizer).train
        self.tokens = global_loss_tokens(case, self.train)

    def steps(self, first: int, last: int) -> list[tuple[float, float]]:
        """Loss per token that this rank knows of, and gradient norm, of the steps from `first` to `last` − 1."""
        engine, pad = self.engine, self.tokenizer.pad_token_id
        feed = Feed(iter(train_loader(self.case, self.train, pad, engine.dp_rank, engine.dp_size)), engine.device.torch)
        for _ in range(first * engine.accumulation_steps):
            next(feed)
        rows = []
        for step in range(first, last):
            result = engine.train_batch(feed, self.tokens[step], learning_rate(self.case, step))
            rows.append((float(result.loss_sum) / self.tokens[step], float(result.grad_norm)))
        return rows


def uninterrupted(job_dir: Path) -> None:
    """Train all steps, saving half way; then read that checkpoint into the engine, which has gone on, and repeat."""
    job = read_job(job_dir)
    case = Case.model_validate(job["case"])
    half, folder = case.steps // 2, Path(job["folder"])
    training = _Training(case)
    training.steps(0, half)
    training.engine.save_native(folder)
    _write(job_dir, "uninterrupted", training.steps(half, case.steps))
    training.engine.load_native(folder)
    _write(job_dir, "rewound", training.steps(half, case.steps))


def resumed(job_dir: Path) -> None:
    """A fresh process reads the checkpoint and trains the second half."""
    job = read_job(job_dir)
    case = Case.model_validate(job["case"])
    training = _Training(case)
    training.engine.load_native(Path(job["folder"]))
    _write(job_dir, "resumed", training.steps(case.steps // 2, case.steps))


def _write(job_dir: Path, name: str, rows: list[tuple[float, float]]) -> None:
    (out_folder(job_dir) / f"{name}.json").write_text(json.dumps(rows))
