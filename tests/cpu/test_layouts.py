"""Every tensor, pipeline and sequence layout computes what one plain process computes, and shards what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.records.folder import case_folder
from bench.spec.paths import ROOT
from bench.spec.suite import load_suite

from .conftest import write_suite
from .layout_checks import check_counts, check_equality, check_memory, check_same_accuracy, check_shards, check_updates

TINY_FOLDER = ROOT / "bench/assets/tiny"
SIZES = {
    "global_batch_size": 16, "steps": 6, "warmup_steps": 1, "lr_schedule": "cosine", "lr_warmup_steps": 2,
    "weight_decay": 0.05, "max_grad_norm": 0.5, "eval_samples": 11, "eval_batch_size": 3, "memory_steps": 1,
    "lora_rank": 4, "keep_checkpoint": True,
}  # fmt: skip
TP2, TP4, PP2, PP4, SP2, SP4 = ({axis: n} for axis in ("tp_size", "pp_size", "sp_size") for n in (2, 4))
Z1, Z2, Z3 = ({"zero_stage": stage} for stage in (1, 2, 3))
FULL, LORA = {"tuning": "full"}, {"tuning": "lora"}
DDP = {"engine": "ddp"}
CHECKPOINTING = {"gradient_checkpointing": True}
BF16 = {"precision": "bf16"}
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
        "bf16-full-z1-tp2": BF16 | FULL | Z1 | TP2,
    },
    4: {
        "lora-z3-tp2-dp2": LORA | Z3 | TP2 | CHECKPOINTING,
        "lora-z1-tp2-pp2": LORA | Z1 | TP2 | PP2 | CHECKPOINTING,
        "full-z3-pp4": FULL | Z3 | PP4,
        "bf16-lora-z3-pp2-dp2": BF16 | LORA | Z3 | PP2,
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
    "bf16-data-2": (2, {
        "bf16-full-ddp": BF16 | FULL | DDP,
        "bf16-full-z1": BF16 | FULL | Z1,
        "bf16-full-z2": BF16 | FULL | Z2,
        "bf16-full-z3": BF16 | FULL | Z3,
        "bf16-lora-ddp": BF16 | LORA | DDP,
        "bf16-lora-z2": BF16 | LORA | Z2,
        "bf16-lora-z3": BF16 | LORA | Z3,
    }),
    "bf16-2": (2, {
        "bf16-full-z3-tp2": BF16 | FULL | Z3 | TP2,
        "bf16-lora-z1-tp2": BF16 | LORA | Z1 | TP2,
        "bf16-full-z1-pp2": BF16 | FULL | Z1 | PP2,
        "bf16-lora-z1-pp2": BF16 | LORA | Z1 | PP2,
        "bf16-full-z3-pp2": BF16 | FULL | Z3 | PP2,
        "bf16-full-z1-sp2": BF16 | FULL | Z1 | SP2,
        "bf16-lora-z3-sp2": BF16 | LORA | Z3 | SP2,
        "bf16-qwen3-full-z1-pp2": BF16 | QWEN3 | FULL | Z1 | PP2,
    }),
    "bf16-4": (4, {
        "bf16-full-z2-tp2-dp2": BF16 | FULL | Z2 | TP2,
        "bf16-lora-z3-tp2-dp2": BF16 | LORA | Z3 | TP2,
        "bf16-full-z1-tp2-pp2": BF16 | FULL | Z1 | TP2 | PP2,
        "bf16-full-z1-pp2-dp2": BF16 | FULL | Z1 | PP2,
        "bf16-full-z3-pp2-dp2": BF16 | FULL | Z3 | PP2,
        "bf16-lora-z3-tp2-pp2": BF16 | LORA | Z3 | TP2 | PP2,
        "bf16-full-z2-sp2-dp2": BF16 | FULL | Z2 | SP2,
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


def run_layouts(launch, folder: Path, world_size: int, layouts: dict[str, dict], families: dict[str, str]) -> None:
    """Launch the layouts and compare each with its reference."""
    path = layout_suite(folder / "layouts.yaml", world_size, layouts, families)
    done = launch(world_size, path)
    assert done.code == 0 and done.run.complete, done.output
    assert set(done.cases) == {case.id for case in load_suite(str(path)).cases}
    for record in done.cases.values():
        assert record.status == "ok", (record.case.id, record.reason, record.log_tail)
        check_equality(record)
        check_updates(record, case_folder(done.folder, record.case.id, 1) / "export")
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
