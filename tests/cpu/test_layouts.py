"""Every tensor, pipeline and sequence layout computes what one plain process computes, and shards what it says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bench.records.schema import CaseRecord
from bench.spec.case import Case
from bench.spec.paths import ROOT
from bench.spec.suite import load_suite

from .conftest import write_suite
from .test_parity import plain_training

TINY_FOLDER = ROOT / "bench/assets/tiny"
SIZES = {
    "global_batch_size": 16, "steps": 6, "warmup_steps": 1, "lr_schedule": "cosine", "lr_warmup_steps": 2,
    "weight_decay": 0.05, "max_grad_norm": 0.5, "eval_samples": 11, "eval_batch_size": 3, "memory_steps": 1,
    "lora_rank": 4,
}  # fmt: skip
TP2, TP4, PP2, PP4, SP2, SP4 = ({axis: n} for axis in ("tp_size", "pp_size", "sp_size") for n in (2, 4))
Z1, Z2, Z3 = ({"zero_stage": stage} for stage in (1, 2, 3))
FULL, LORA = {"tuning": "full"}, {"tuning": "lora"}
CHECKPOINTING = {"gradient_checkpointing": True}
QWEN3 = {"model": "qwen3", "weights": "random"}
"""Query and key norms, tied embeddings."""
LLAMA = {"model": "llama", "weights": "random"}
"""No biases, untied head; MLP and vocabulary of odd width, so that tensor shards differ in size."""
CONFIGS = {
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 24, "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
        "intermediate_size": 383, "vocab_size": 1281,
    },
}  # fmt: skip

# What a launch of so many ranks runs in the default set, and launches of the slow one besides.
DEFAULT: dict[int, dict[str, dict]] = {
    2: {
        "full-z1-tp2": FULL | Z1 | TP2,
        "qwen3-full-z3-tp2": QWEN3 | FULL | Z3 | TP2,
        "qwen3-full-z1-pp2": QWEN3 | FULL | Z1 | PP2,
        "lora-z3-sp2": LORA | Z3 | SP2,
    },
    4: {
        "lora-z3-tp2-dp2": LORA | Z3 | TP2 | CHECKPOINTING,
        "lora-z1-tp2-pp2": LORA | Z1 | TP2 | PP2 | CHECKPOINTING,
        "full-z3-pp4": FULL | Z3 | PP4,
    },
}
SLOW: dict[str, tuple[int, dict[str, dict]]] = {
    "tensor-2": (2, {
        "full-z2-tp2": FULL | Z2 | TP2 | CHECKPOINTING,
        "full-z3-tp2": FULL | Z3 | TP2,
        "lora-z1-tp2": LORA | Z1 | TP2,
        "lora-z2-tp2": LORA | Z2 | TP2,
        "lora-z3-tp2": LORA | Z3 | TP2,
        "qwen3-lora-z1-tp2": QWEN3 | LORA | Z1 | TP2,
    }),
    "pipeline-2": (2, {
        "full-z1-pp2": FULL | Z1 | PP2,
        "lora-z1-pp2": LORA | Z1 | PP2,
        "full-z3-pp2": FULL | Z3 | PP2,
        "lora-z3-pp2": LORA | Z3 | PP2,
        "qwen3-lora-z3-pp2": QWEN3 | LORA | Z3 | PP2,
    }),
    "sequence-2": (2, {
        "full-z1-sp2": FULL | Z1 | SP2,
        "full-z2-sp2": FULL | Z2 | SP2 | CHECKPOINTING,
        "full-z3-sp2": FULL | Z3 | SP2,
        "lora-z1-sp2": LORA | Z1 | SP2,
        "lora-z2-sp2": LORA | Z2 | SP2,
        "qwen3-full-z3-sp2": QWEN3 | FULL | Z3 | SP2,
    }),
    "llama-2": (2, {
        "llama-full-z1-tp2": LLAMA | FULL | Z1 | TP2,
        "llama-full-z3-tp2": LLAMA | FULL | Z3 | TP2,
        "llama-lora-z2-tp2": LLAMA | LORA | Z2 | TP2 | CHECKPOINTING,
        "llama-full-z1-pp2": LLAMA | FULL | Z1 | PP2,
        "llama-lora-z1-pp2": LLAMA | LORA | Z1 | PP2,
        "llama-full-z3-pp2": LLAMA | FULL | Z3 | PP2 | CHECKPOINTING,
    }),
    "llama-4": (4, {
        "llama-full-z1-tp2-pp2": LLAMA | FULL | Z1 | TP2 | PP2,
        "llama-lora-z3-tp4": LLAMA | LORA | Z3 | TP4,
        "llama-lora-z3-tp2-pp2": LLAMA | LORA | Z3 | TP2 | PP2,
        "llama-full-z3-pp2-dp2": LLAMA | FULL | Z3 | PP2,
    }),
    "tensor-4": (4, {
        "full-z1-tp2-dp2": FULL | Z1 | TP2,
        "full-z2-tp4": FULL | Z2 | TP4,
        "full-z3-tp2-dp2": FULL | Z3 | TP2,
        "lora-z2-tp4": LORA | Z2 | TP4,
        "lora-z1-tp2-dp2": LORA | Z1 | TP2,
    }),
    "pipeline-4": (4, {
        "full-z1-pp2-dp2": FULL | Z1 | PP2,
        "full-z1-tp2-pp2": FULL | Z1 | TP2 | PP2 | CHECKPOINTING,
        "lora-z1-pp4": LORA | Z1 | PP4,
        "lora-z1-pp2-dp2": LORA | Z1 | PP2 | CHECKPOINTING,
        "qwen3-full-z1-tp2-pp2": QWEN3 | FULL | Z1 | TP2 | PP2,
    }),
    "staged-4": (4, {
        "full-z3-pp2-dp2": FULL | Z3 | PP2,
        "full-z3-tp2-pp2": FULL | Z3 | TP2 | PP2,
        "lora-z3-pp2-dp2": LORA | Z3 | PP2 | CHECKPOINTING,
        "qwen3-lora-z3-tp2-pp2": QWEN3 | LORA | Z3 | TP2 | PP2,
    }),
    "sequence-4": (4, {
        "full-z2-sp2-dp2": FULL | Z2 | SP2,
        "full-z3-sp2-dp2": FULL | Z3 | SP2,
        "full-z3-sp4": FULL | Z3 | SP4,
        "lora-z1-sp4": LORA | Z1 | SP4,
        "lora-z3-sp2-dp2": LORA | Z3 | SP2,
    }),
    "tensor-8": (8, {
        "full-z3-tp4-dp2": FULL | Z3 | TP4,
        "lora-z2-tp2-dp4": LORA | Z2 | TP2,
        "full-z3-sp4-dp2": FULL | Z3 | SP4,
    }),
    "pipeline-8": (8, {
        "full-z1-tp4-pp2": FULL | Z1 | TP4 | PP2,
        "lora-z1-tp2-pp2-dp2": LORA | Z1 | TP2 | PP2,
        "full-z3-tp2-pp2-dp2": FULL | Z3 | TP2 | PP2,
        "lora-z3-pp2-dp4": LORA | Z3 | PP2,
    }),
}  # fmt: skip


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of tiny models by family: the tokenizer of the tiny model and a config, for seeded random weights."""
    base = json.loads((TINY_FOLDER / "config.json").read_text())
    folders = {}
    for family, fields in CONFIGS.items():
        folder = tmp_path_factory.mktemp(family)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(TINY_FOLDER / name, folder / name)
        (folder / "config.json").write_text(json.dumps(base | fields))
        folders[family] = str(folder)
    return folders


def layout_suite(path: Path, world_size: int, layouts: dict[str, dict], families: dict[str, str]) -> Path:
    """A suite whose cases all accumulate twice at least, over the same global batch."""
    cases = []
    for name, fields in layouts.items():
        model = fields.get("model")
        fields = {**fields, "model": families[model]} if model else fields
        replica = fields.get("tp_size", 1) * fields.get("pp_size", 1) * fields.get("sp_size", 1)
        accumulation = fields.get("pp_size", 1) * 2
        micro = 16 * replica // (accumulation * world_size)
        cases.append({"id": name, "micro_batch_size": max(1, micro), **fields})
    return write_suite(path, cases, **SIZES)


_references: dict[str, tuple[list[float], list[float], float]] = {}
_parameters: dict[str, list[tuple[str, int, bool]]] = {}


def reference(case: Case) -> tuple[list[float], list[float], float]:
    """One plain process over the same model and data, computed once for each model and method."""
    key = f"{case.model} {case.tuning}"
    if key not in _references:
        one = {"tp_size": 1, "pp_size": 1, "sp_size": 1, "zero_stage": 1, "gradient_checkpointing": False}
        _references[key] = plain_training(case.model_copy(update=one))
    return _references[key]


def run_layouts(launch, folder: Path, world_size: int, layouts: dict[str, dict], families: dict[str, str]) -> None:
    """Launch the layouts and compare each with its reference."""
    path = layout_suite(folder / "layouts.yaml", world_size, layouts, families)
    done = launch(world_size, path)
    assert done.code == 0 and done.run.complete, done.output
    assert set(done.cases) == {case.id for case in load_suite(str(path)).cases}
    for record in done.cases.values():
        assert record.status == "ok", (record.case.id, record.reason, record.log_tail)
        check_equality(record)
        check_counts(record)
        check_shards(record)
        check_memory(record)
    check_same_accuracy(list(done.cases.values()))


@pytest.mark.parametrize("world_size", DEFAULT)
def test_layouts(launch, tmp_path: Path, families: dict[str, str], world_size: int) -> None:
    run_layouts(launch, tmp_path, world_size, DEFAULT[world_size], families)


@pytest.mark.slow
@pytest.mark.parametrize("group", SLOW)
def test_more_layouts(launch, tmp_path: Path, families: dict[str, str], group: str) -> None:
    run_layouts(launch, tmp_path, SLOW[group][0], SLOW[group][1], families)


def check_equality(record: CaseRecord) -> None:
    """Losses, gradient norms, evaluation and the exported weights are those of one process."""
    losses, norms, held_out = reference(record.case)
    assert record.losses == pytest.approx(losses, abs=1e-4), record.case.id
    assert record.grad_norms == pytest.approx(norms, rel=1e-3), record.case.id
    after = record.evaluation["after"]
    assert after.samples == record.evaluation["before"].samples == 11
    assert after.loss_sum / after.loss_tokens == pytest.approx(held_out, abs=1e-4), record.case.id
    saved = record.checkpoint
    assert saved is not None and saved.verified is True, (record.case.id, saved and saved.reason)
    assert saved.reload_loss == pytest.approx(saved.trained_loss, rel=1e-6)
    assert record.parameters is not None and saved.load_s is not None
    exported = record.parameters.total if record.case.tuning == "full" else record.parameters.trainable
    assert 4 * exported <= saved.export_bytes <= 4 * exported + 20_000


def check_same_accuracy(records: list[CaseRecord]) -> None:
    """The same weights answer alike under every layout, token by token."""
    answers: dict[str, set[tuple[int, int]]] = {}
    for record in records:
        before = record.evaluation["before"]
        answers.setdefault(record.case.model, set()).add((before.correct_tokens, before.exact_samples))
    assert all(len(found) == 1 for found in answers.values()), answers


def check_counts(record: CaseRecord) -> None:
    """Each sample counts once, although all ranks of a replica are fed it."""
    assert record.timed is not None and record.timed.steps == 5
    assert record.timed.samples == 5 * 16
    assert record.accumulation_steps is not None and record.accumulation_steps >= 2
    assert len({tuple(sorted(rank.mesh.items())) for rank in record.ranks}) == record.world_size


def check_shards(record: CaseRecord) -> None:
    """Each rank holds exactly its stage's and its tensor shard's elements, and of these its ZeRO share."""
    case = record.case
    assert record.mesh is not None
    # ZeRO shards over all ranks that hold the same part, which data and sequence axes make up.
    zero = record.mesh["dp"] * record.mesh["sp"]
    for rank in record.ranks:
        held, trained = part_elements(case, rank.mesh["pp"])
        assert rank.shards is not None
        stored = zero if case.zero_stage == 3 else 1
        assert rank.shards.weight_elements == pytest.approx(held / stored, rel=0.01), (case.id, rank.rank)
        assert rank.shards.optimizer_elements == pytest.approx(trained / zero, rel=0.01), (case.id, rank.rank)


def part_elements(case: Case, stage: int) -> tuple[int, int]:
    """Elements of one stage's tensor shard by the rules of the layout, and of these the trained ones."""
    held = trained = 0
    last = case.pp_size - 1
    for name, elements, trainable in plain_parameters(case):
        block = re.search(r"\.layers\.(\d+)\.", name)
        if block:
            mine = int(block.group(1)) * case.pp_size // 4 == stage
        elif "embed_tokens" in name:  # the head of a tied model has a copy
            mine = stage == 0 or (stage == last and "qwen3" in case.model)
        else:
            mine = stage == last
        share = elements // (case.tp_size if is_split(name) else 1)
        held += share * mine
        trained += share * mine * trainable
    return held, trained


def is_split(name: str) -> bool:
    """Column layers and their B, row layers' weights and their A, embedding and head."""
    column = any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
    row = any(part in name for part in ("o_proj", "down_proj"))
    if "lora_" in name:
        return ("lora_B" in name and column) or ("lora_A" in name and row)
    return column or (row and not name.endswith("bias")) or "embed_tokens" in name or "lm_head" in name


def plain_parameters(case: Case) -> list[tuple[str, int, bool]]:
    """(name, elements, trainable) of the plain model."""
    key = f"{case.model} {case.tuning}"
    if key not in _parameters:
        _parameters[key] = _read_parameters(case)
    return _parameters[key]


def _read_parameters(case: Case) -> list[tuple[str, int, bool]]:
    import torch

    from bench.worker.device import Device
    from bench.worker.model import build_model

    model, _, _ = build_model(case, Device(torch.device("cpu"), "cpu"), None)
    return [(name, p.numel(), p.requires_grad) for name, p in model.named_parameters()]


def check_memory(record: CaseRecord) -> None:
    """The tally sees the sharded bytes: four a weight, eight a stepped one."""
    for rank in record.ranks:
        tally, shards = rank.memory_pass, rank.shards
        assert tally is not None and tally.status == "ok" and shards is not None, (record.case.id, tally)
        steady = tally.phases["steady"].by_category
        assert steady["weights"] == pytest.approx(4 * shards.weight_elements, rel=0.01), record.case.id
        assert steady["optimizer_state"] == pytest.approx(8 * shards.optimizer_elements, rel=0.01), record.case.id
