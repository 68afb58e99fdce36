"""Proof, in a fresh process without any engine, that an export loads and gives the trained model's loss."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench import jobfolder
from bench.spec.case import Case
from bench.worker.batches import Collate
from bench.worker.data import Dataset, Sample, build_dataset
from bench.worker.device import DTYPES, Device, pick_device
from bench.worker.evaluate import summed
from bench.worker.loss import score
from bench.worker.model import build_base

VERIFY_SAMPLES = 32


def verification_samples(dataset: Dataset) -> list[Sample]:
    """The samples whose loss is compared: held-out ones, or the first training samples where there are none."""
    return (dataset.held_out or dataset.train)[:VERIFY_SAMPLES]


def run(job_dir: Path) -> None:
    """Worker entry: load the export named in job.json and write `verify.json`."""
    job = jobfolder.read_job(job_dir)
    case, export = Case.model_validate(job["case"]), Path(job["export"])
    jobfolder.set_phase(job_dir, "reload")
    device = pick_device()
    tokenizer = AutoTokenizer.from_pretrained(export)
    samples = verification_samples(build_dataset(case, tokenizer))
    start = time.perf_counter()
    model, elements = load_export(case, export, device)
    device.fence()
    facts: dict[str, Any] = {"reload_s": time.perf_counter() - start, "elements": elements}
    facts |= summed_loss(model, samples, case.eval_batch_size, tokenizer.pad_token_id, device)
    (jobfolder.out_folder(job_dir) / "verify.json").write_text(json.dumps(facts, allow_nan=False))


def load_export(case: Case, export: Path, device: Device) -> tuple[nn.Module, int]:
    """Load as any user would.

    Returns:
        The model in evaluation mode, and the elements of the export's tensor files.
    """
    from safetensors import safe_open

    elements = 0
    for file in export.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names = list(tensors.keys())
            elements += sum(torch.Size(tensors.get_slice(name).get_shape()).numel() for name in names)
    if case.tuning == "full":
        model = AutoModelForCausalLM.from_pretrained(
            export, dtype=DTYPES[case.precision], attn_implementation=case.attention
        )
    else:
        from peft import PeftModel

        base, _ = build_base(case, device, sharded=False)
        model = PeftModel.from_pretrained(base, export, autocast_adapter_dtype=False)
    return model.to(device.torch).eval(), elements


@torch.no_grad()
def summed_loss(model: nn.Module, samples: list[Sample], batch_size: int, pad: int, device: Device) -> dict[str, Any]:
    """Loss sum and tokens over samples with the plain model."""
    ordered = sorted(samples, key=lambda sample: len(sample.tokens))
    scores = []
    for i in range(0, len(ordered), batch_size):
        batch = Collate(pad)(ordered[i : i + batch_size]).to(device.torch)
        scores += score(model(input_ids=batch.input_ids, use_cache=False).logits, batch)
    total = summed(scores)
    return {"loss_sum": total.loss_sum, "loss_tokens": total.loss_tokens}
