"""Every engine, stage and rank count computes what one plain process computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.records.schema import CaseRecord
from bench.spec.case import Case
from bench.spec.suite import load_suite

from .conftest import write_suite

STRATEGIES = {
    "ddp": {"engine": "ddp"}, "z0": {"zero_stage": 0}, "z1": {"zero_stage": 1}, "z2": {"zero_stage": 2},
    "z3": {"zero_stage": 3},
}  # fmt: skip
SIZES = {
    "global_batch_size": 16, "steps": 20, "warmup_steps": 2, "lr_schedule": "cosine", "lr_warmup_steps": 4,
    "weight_decay": 0.05, "max_grad_norm": 0.5, "eval_samples": 11, "eval_batch_size": 3, "memory_steps": 1,
    "lora_rank": 4,
}  # fmt: skip


def parity_suite(path: Path, world_size: int) -> Path:
    cases = [
        {"id": f"{tuning}-{name}", "tuning": tuning, **fields}
        for tuning in ("full", "lora")
        for name, fields in STRATEGIES.items()
    ]
    return write_suite(path, cases, micro_batch_size=16 // (2 * world_size), **SIZES)


@dataclass(frozen=True)
class Plain:
    """What an ordinary loop in one process gives."""

    losses: list[float]
    """Per token, of each step."""
    norms: list[float]
    """Of the gradient, before clipping."""
    held_out: float
    """Loss per token afterwards."""
    before: dict
    """Trained parameters by name, before the first step."""
    after: dict
    """And after the last one."""


def plain_training(case: Case) -> Plain:
    """An ordinary loop in one process: no engine, no accumulation, the same samples.

    AdamW steps fp32 copies of the weights, which in fp32 are the weights themselves.
    """
    import torch
    from transformers import AutoTokenizer

    from bench.spec.paths import local_path
    from bench.worker.batches import Collate
    from bench.worker.data import build_dataset
    from bench.worker.device import Device
    from bench.worker.model import build_model

    model, _, _ = build_model(case, Device(torch.device("cpu"), "cpu"), None)
    tokenizer = AutoTokenizer.from_pretrained(local_path(case.model))
    data = build_dataset(case, tokenizer)
    collate = Collate(tokenizer.pad_token_id)
    trainable = [p for p in model.parameters() if p.requires_grad]
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    masters = [p.detach().float().requires_grad_() for p in trainable]
    groups = [
        {"params": [p for p in masters if p.dim() >= 2], "weight_decay": case.weight_decay},
        {"params": [p for p in masters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=case.learning_rate)
    rates = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / case.lr_warmup_steps),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, case.steps - case.lr_warmup_steps),
        ],
        [case.lr_warmup_steps],
    )

    def mean_loss(samples: list) -> torch.Tensor:
        batch = collate(samples)
        mask = batch.input_ids.new_ones(batch.input_ids.shape)
        for row, sample in enumerate(samples):
            mask[row, len(sample.tokens) :] = 0
        return model(input_ids=batch.input_ids, attention_mask=mask, labels=batch.labels, use_cache=False).loss

    losses, norms = [], []
    for step in range(case.steps):
        samples = data.train[step * case.global_batch_size : (step + 1) * case.global_batch_size]
        loss = mean_loss(samples)
        model.zero_grad()
        loss.backward()
        for parameter, master in zip(trainable, masters, strict=True):
            master.grad = parameter.grad.float()
        norms.append(float(torch.nn.utils.clip_grad_norm_(masters, case.max_grad_norm)))
        optimizer.step()
        rates.step()
        with torch.no_grad():
            for parameter, master in zip(trainable, masters, strict=True):
                parameter.copy_(master)
        losses.append(loss.item())
    model.eval()
    after = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        return Plain(losses, norms, mean_loss(data.held_out).item(), before, after)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plain]:
    path = parity_suite(tmp_path_factory.mktemp("plain") / "parity.yaml", 1)
    cases = {case.id: case for case in load_suite(str(path)).cases}
    return {tuning: plain_training(cases[f"{tuning}-ddp"]) for tuning in ("full", "lora")}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_losses_norms_and_evaluation_equal_one_plain_process(
    launch, reference, tmp_path: Path, world_size: int
) -> None:
    done = launch(world_size, parity_suite(tmp_path / "parity.yaml", world_size))
    assert done.code == 0 and done.run.complete, done.output
    assert len(done.cases) == 10
    for record in done.cases.values():
        assert record.status == "ok", (record.case.id, record.reason, record.log_tail)
        plain = reference[record.case.tuning]
        assert record.losses == pytest.approx(plain.losses, abs=1e-4), record.case.id
        assert record.grad_norms == pytest.approx(plain.norms, rel=1e-4), record.case.id
        after = record.evaluation["after"]
        assert after.loss_sum / after.loss_tokens == pytest.approx(plain.held_out, abs=1e-4), record.case.id
        assert record.accumulation_steps == 2
        check_counts(record)
        check_shards(record, world_size)
        check_checkpoint(record)
        check_memory(record, world_size)
    check_same_data(list(done.cases.values()))


def check_counts(record: CaseRecord) -> None:
    """Each sample counts once, whatever the rank count."""
    assert record.timed is not None and record.timed.steps == 18
    assert record.timed.samples == 18 * 16
    assert record.timed.tokens < record.timed.padded_tokens, "samples should be of uneven length"
    assert record.evaluation["after"].samples == record.evaluation["before"].samples == 11
    assert record.outside_steps_s is not None and record.outside_steps_s < 60


def check_shards(record: CaseRecord, world_size: int) -> None:
    """What each rank holds is what its stage promises (the last rank may hold padding)."""
    assert record.parameters is not None
    stage = record.case.zero_stage or 0
    for rank in record.ranks:
        assert rank.shards is not None
        weights = record.parameters.total / (world_size if stage == 3 else 1)
        stepped = record.parameters.trainable / (world_size if stage else 1)
        assert rank.shards.weight_elements == pytest.approx(weights, rel=0.01)
        assert rank.shards.optimizer_elements == pytest.approx(stepped, rel=0.01)


def check_checkpoint(record: CaseRecord) -> None:
    """What was saved loads in a fresh process and gives the same loss."""
    saved = record.checkpoint
    assert saved is not None and saved.verified is True, (record.case.id, saved and saved.reason)
    assert record.parameters is not None
    exported = record.parameters.total if record.case.tuning == "full" else record.parameters.trainable
    header = 200 * 100  # names and shapes of safetensors, at most so much a tensor
    assert 4 * exported <= saved.export_bytes <= 4 * exported + header
    assert sum(saved.native_bytes.values()) >= 3 * 4 * record.parameters.trainable


def check_memory(record: CaseRecord, world_size: int) -> None:
    """The tally's categories between two steps are what arithmetic says, to the byte."""
    assert record.parameters is not None
    trainable, stage = record.parameters.trainable, record.case.zero_stage or 0
    for rank in record.ranks:
        tally = rank.memory_pass
        assert tally is not None and tally.status == "ok", tally
        steady = tally.phases["steady"].by_category
        sharded = world_size if stage else 1
        assert steady["optimizer_state"] == pytest.approx(8 * trainable / sharded, rel=0.01)
        weights = 4 * record.parameters.total / (world_size if stage == 3 else 1)
        assert steady["weights"] == pytest.approx(weights, rel=0.01)
        for phase in tally.phases.values():
            assert sum(phase.by_category.values()) == phase.peak_bytes
        assert tally.peak_bytes == max(phase.peak_bytes for phase in tally.phases.values())


def check_same_data(records: list[CaseRecord]) -> None:
    """All arms were fed the same tokens in the same order."""
    assert len({record.data.fingerprint for record in records if record.data}) == 1
