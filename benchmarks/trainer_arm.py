"""The other side of `vs_trainer.py`: Hugging Face Trainer + DeepSpeed + PEFT on the same samples."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from bench import jobfolder
from bench.spec import ds_config
from bench.spec.case import Case
from bench.spec.paths import local_path
from bench.worker.data import IGNORE, build_dataset
from bench.worker.device import join_process_group, pick_device, seed_all
from bench.worker.model import build_model


def run(job_dir: Path) -> None:
    """Worker entry: train the case with Trainer, and write the same window and losses as our own worker."""
    job = jobfolder.read_job(job_dir)
    case, device = Case.model_validate(job["case"]), pick_device()
    join_process_group(device, case.timeout_s)
    world_size = job["rank_info"]["world_size"]
    config = ds_config.resolve(case, world_size) if case.engine == "deepspeed" else None
    arguments = _arguments(case, world_size, config, job_dir)  # before the model: it announces ZeRO-3 to transformers
    tokenizer = AutoTokenizer.from_pretrained(str(local_path(case.model)))
    dataset = build_dataset(case, tokenizer)
    seed_all(case.seed, 0)
    model, _, _ = build_model(case, device, config)
    clock = _Clock(case, device)
    trainer = _InOrder(
        model=model, args=arguments, callbacks=[clock], data_collator=_Collator(tokenizer.pad_token_id),
        train_dataset=[{"input_ids": s.tokens, "labels": s.labels} for s in dataset.train],
    )  # fmt: skip
    result = trainer.train()
    facts = {"window_s": clock.window_s, "steps": case.steps - case.warmup_steps, "mean_loss": result.training_loss}
    (jobfolder.out_folder(job_dir) / "trainer.json").write_text(json.dumps(facts))


def _arguments(case: Case, world_size: int, config: dict | None, job_dir: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(job_dir / "trainer"), max_steps=case.steps, deepspeed=config,
        per_device_train_batch_size=case.micro_batch_size,
        gradient_accumulation_steps=case.accumulation_steps(world_size),
        learning_rate=case.learning_rate, lr_scheduler_type=case.lr_schedule, warmup_steps=case.lr_warmup_steps,
        weight_decay=case.weight_decay, max_grad_norm=case.max_grad_norm, optim="adamw_torch_fused",
        bf16=case.precision == "bf16", use_cpu=not torch.cuda.is_available(), seed=case.seed,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
        dataloader_num_workers=case.loader_workers, ddp_find_unused_parameters=False,
    )  # fmt: skip


class _InOrder(Trainer):
    """Trainer that feeds the samples in the given order, as our loader does."""

    def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class _Collator:
    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        batch = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in rows:
            missing = longest - len(row["input_ids"])
            batch["input_ids"].append([*row["input_ids"], *[self.pad] * missing])
            batch["labels"].append([*row["labels"], *[IGNORE] * missing])
            batch["attention_mask"].append([1] * len(row["input_ids"]) + [0] * missing)
        return {name: torch.tensor(values) for name, values in batch.items()}


class _Clock(TrainerCallback):
    """From the start of the first timed step to the end of the last, as our own window."""

    def __init__(self, case: Case, device: object) -> None:
        self.first, self.last, self.device = case.warmup_steps, case.steps, device
        self.start = self.window_s = 0.0

    def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
        if state.global_step == self.first:
            self.device.fence()
            self.start = time.perf_counter()

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        if state.global_step == self.last:
            self.device.fence()
            self.window_s = time.perf_counter() - self.start
