"""One case: everything that decides what a measurement means, frozen and validated.

Nothing is left to an engine's default. Names are the field's standard terms; DeepSpeed's own
spellings live in `ds_config.py`.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

ALL_LINEAR = "all-linear"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


class Case(BaseModel):
    """One configuration of the benchmark, the same on every rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    id: str = Field(max_length=120)
    """Stable, readable name; also the folder name of its results."""

    # Model
    model: str = Field(min_length=1)
    """Hugging Face hub name, or folder of a causal LM (relative to here or to the repository)."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random` draws seeded weights from the config alone: for speed and memory, not accuracy."""
    model_overrides: dict[str, int | float | bool | str] = {}
    """Fields of the model's config to replace; needs `weights: random`."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention kernel of transformers."""
    gradient_checkpointing: bool = False
    """Recompute each block's activations in the backward pass (non-reentrant)."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Weights and compute; bf16 and fp16 keep fp32 master weights and moments of what is trained."""

    # Tuning method
    tuning: Literal["full", "lora"]
    """`full` trains every parameter, `lora` adapters of PEFT on a frozen base."""
    lora_rank: PositiveInt | None = None
    """Rank r of the adapters (default 8); null for full fine-tuning."""
    lora_alpha: PositiveInt | None = None
    """Scaling numerator: adapters are scaled by alpha / r (default 2 r); null for full."""
    lora_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the adapter (default 0); null for full."""
    target_modules: tuple[str, ...] | None = None
    """Names of linear modules to adapt, or `all-linear` (default); null for full."""

    # Engine and layout
    engine: Literal["ddp", "deepspeed"] = "deepspeed"
    """Who wraps the model: torch DistributedDataParallel or a DeepSpeed engine."""
    zero_stage: Literal[0, 1, 2, 3] | None = None
    """ZeRO stage of the DeepSpeed engine; null under ddp."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """`cpu` keeps optimizer state in host memory and steps it there (DeepSpeed CPUAdam)."""
    tp_size: PositiveInt = 1
    """Tensor-parallel ranks."""
    pp_size: PositiveInt = 1
    """Pipeline stages."""
    sp_size: PositiveInt = 1
    """Sequence-parallel ranks (Ulysses)."""
    ds_config: str | None = None
    """DeepSpeed template (file); null takes `ds_configs/` by stage, and under ddp."""
    ds_overrides: dict[str, Any] = {}
    """Dotted DeepSpeed keys to replace in the template, e.g. zero_optimization.reduce_bucket_size; empty under ddp."""

    # Optimisation
    optimizer: Literal["adamw_fused", "adamw"] = "adamw_fused"
    """torch AdamW: fused kernel, or one parameter at a time (`foreach=False`, `fused=False`)."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate of this arm."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Decay after the warm-up, to zero at the last step."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear learning-rate warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay on every trainable parameter with two or more dimensions."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """First-moment decay."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Second-moment decay."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Term added to the denominator."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Clip the global gradient norm to this; 0 switches clipping off."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds random weights, adapters, dropout and the order of the samples."""
    steps: PositiveInt
    """Optimizer steps, warm-up included."""
    warmup_steps: int = Field(default=3, ge=0)
    """First steps that are recorded but never counted for speed."""
    global_batch_size: PositiveInt
    """Samples of one optimizer step over all ranks; equal for compared cases."""
    micro_batch_size: PositiveInt
    """Samples of one forward pass on one data-parallel rank."""

    # Data
    data: str = Field(min_length=1)
    """Alpaca or chat-messages rows: json, jsonl or parquet file, or a hub data set."""
    data_split: str = "train"
    """Split of a hub data set."""
    seq_len: PositiveInt
    """Longest sample in tokens; longer ones are truncated and counted."""
    fill: bool = False
    """Fill every sample to exactly `seq_len` tokens with the samples that follow it."""
    loader_workers: int = Field(default=0, ge=0)
    """Processes that prepare batches; 0 prepares them in the training process."""
    prefetch: PositiveInt = 2
    """Batches each loader worker keeps ready."""
    pin_memory: bool = False
    """Stage batches in page-locked memory."""

    # Evaluation, checkpoint, passes
    eval_samples: int = Field(default=0, ge=0)
    """Held-out samples; 0 skips evaluation. The same rows for every case and rank count."""
    eval_split: Literal["test", "validation"] = "test"
    """Which held-out rows: choose learning rates on `validation`, report on `test`."""
    eval_batch_size: PositiveInt = 8
    """Samples of one evaluation forward pass on one rank."""
    save_checkpoint: bool = True
    """Save, measure, reload in a fresh process and delete."""
    keep_checkpoint: bool = False
    """Leave the exported weights or adapter in the results folder."""
    memory_steps: int = Field(default=2, ge=0)
    """Traced steps of the memory pass after the timed pass; 0 skips it."""
    timeout_s: float = Field(default=1800, gt=0)
    """Longest life of the case's processes."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: Any) -> Any:
        """Give LoRA fields their defaults under `lora`; clear those that the arm or engine does not have."""
        if not isinstance(fields, dict):
            return fields
        done = dict(fields)
        if isinstance(done.get("target_modules"), str):
            done["target_modules"] = (done["target_modules"],)
        if done.get("tuning") == "lora":
            rank = done.get("lora_rank") or 8
            defaults = {"lora_rank": 8, "lora_dropout": 0.0, "target_modules": (ALL_LINEAR,)}
            defaults["lora_alpha"] = 2 * rank if isinstance(rank, int) else None
            done.update({key: value for key, value in defaults.items() if done.get(key) is None})
        elif done.get("tuning") == "full":
            done.update(lora_rank=None, lora_alpha=None, lora_dropout=None, target_modules=None)
        if done.get("engine", "deepspeed") == "ddp":
            done.update(ds_config=None, ds_overrides={})
        return done

    @model_validator(mode="after")
    def _consistent(self) -> Case:
        """Refuse combinations of fields that have no meaning, naming the field and what is accepted."""
        checks = [
            (not _ID.fullmatch(self.id), f"id {self.id!r} may hold letters, digits and . _ = + -"),
            (self.engine == "ddp" and self.zero_stage is not None,
             f"zero_stage {self.zero_stage} needs engine deepspeed; leave it out under ddp"),
            (self.engine == "deepspeed" and self.zero_stage is None,
             "zero_stage is missing: 0, 1, 2 or 3 under engine deepspeed"),
            (self.engine == "ddp" and self.offload_optimizer != "none",
             f"offload_optimizer {self.offload_optimizer!r} needs engine deepspeed"),
            (bool(self.model_overrides) and self.weights != "random",
             "model_overrides change shapes, so they need weights: random"),
            (self.lr_warmup_steps > self.steps,
             f"lr_warmup_steps {self.lr_warmup_steps} exceeds steps {self.steps}"),
            (self.warmup_steps >= self.steps,
             f"warmup_steps {self.warmup_steps} leaves none of the {self.steps} steps to be timed"),
            (self.keep_checkpoint and not self.save_checkpoint,
             "keep_checkpoint needs save_checkpoint"),
            (self.target_modules is not None and len(self.target_modules) == 0,
             f"target_modules is empty: name linear modules, or {ALL_LINEAR}"),
        ]  # fmt: skip
        for wrong, sentence in checks:
            if wrong:
                raise ValueError(sentence)
        return self

    @property
    def strategy(self) -> str:
        """Short name of engine and layout: `ddp`, `zero3`, `zero3-tp4-pp2`, `zero3-offload`."""
        parts = ["ddp" if self.engine == "ddp" else f"zero{self.zero_stage}"]
        parts += [f"{axis}{size}" for axis, size in self.model_axes.items() if size > 1]
        parts += ["offload"] if self.offload_optimizer != "none" else []
        return "-".join(parts)

    @property
    def model_axes(self) -> dict[str, int]:
        """Sizes of the mesh axes that split one model replica, by short name."""
        return {"tp": self.tp_size, "pp": self.pp_size, "sp": self.sp_size}

    def dp_size(self, world_size: int) -> int:
        """Data-parallel ranks in a world; raises ValueError where the axes do not divide it."""
        replica = self.tp_size * self.pp_size * self.sp_size
        if world_size % replica:
            raise ValueError(f"tp_size × pp_size × sp_size = {replica} does not divide the world size {world_size}")
        return world_size // replica

    def accumulation_steps(self, world_size: int) -> int:
        """Micro-batches per optimizer step and rank; raises ValueError where sizes do not divide."""
        per_pass = self.micro_batch_size * self.dp_size(world_size)
        if self.global_batch_size % per_pass:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} is not a multiple of micro_batch_size "
                f"{self.micro_batch_size} × {self.dp_size(world_size)} data-parallel ranks = {per_pass}"
            )
        return self.global_batch_size // per_pass
