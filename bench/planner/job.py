"""What the formulas look at: a case, or a foreign measurement, in one neutral form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bench.spec.case import Case
from bench.spec.ds_config import resolve
from bench.spec.models import ModelShape

HALF, FULL = 2, 4
"""Bytes of bf16 and fp16, and of fp32."""


@dataclass(frozen=True)
class Precision:
    """Bytes per element of everything that is stored for a parameter."""

    compute: int = HALF
    """Activations, and weights where nothing else is said."""
    weights: float = HALF
    """Base weights: also 4 for fp32 shards under mixed precision, 0.5 and scales for NF4."""
    gradients: int = HALF
    master: int = FULL
    """fp32 copy of what is trained; 0 where the optimizer steps the weights themselves."""
    moments: float = 2 * FULL
    """All moments of the optimizer together: 8 for fp32 Adam, 4 for bf16 Adam, 2 for 8-bit Adam."""
    adapters: int = HALF


@dataclass(frozen=True)
class ZeroOptions:
    """The numbers of a DeepSpeed config that decide bytes; elements unless said."""

    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    persistence_threshold: int = 100_000
    max_live: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    efficient_linear: bool = True
    """Linear layers save the parameter for backward, which ZeRO-3 can empty; plain ones save a view of its values."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ZeroOptions:
        """Take the values of a resolved DeepSpeed config; absent keys have DeepSpeed 0.19's defaults."""
        zero = config.get("zero_optimization", {})
        keys = {
            "reduce_bucket": "reduce_bucket_size", "allgather_bucket": "allgather_bucket_size",
            "prefetch_bucket": "stage3_prefetch_bucket_size",
            "persistence_threshold": "stage3_param_persistence_threshold",
            "max_live": "stage3_max_live_parameters", "max_reuse_distance": "stage3_max_reuse_distance",
            "sub_group": "sub_group_size", "contiguous_gradients": "contiguous_gradients",
            "efficient_linear": "memory_efficient_linear",
        }  # fmt: skip
        values = {name: zero[key] for name, key in keys.items() if key in zero}
        # DeepSpeed switches overlap on by default at stage 3 alone.
        values["overlap_comm"] = zero.get("overlap_comm", zero.get("stage") == 3)
        return cls(**{k: v if isinstance(v, bool) else int(v) for k, v in values.items()})


@dataclass(frozen=True)
class Job:
    """One training job on one kind of rank layout."""

    shape: ModelShape
    tuning: str
    """`full` or `lora` (a quantised base is `lora` with `precision.weights` below 2)."""
    micro_batch: int
    seq_len: int
    engine: str = "zero"
    """`ddp`, `zero`, or `torch` for measurements of others: plain at stage 0, FSDP at stage 3."""
    zero_stage: int = 3
    world_size: int = 1
    tp: int = 1
    pp: int = 1
    sp: int = 1
    accumulation: int = 1
    gradient_checkpointing: bool = False
    attention: str = "flash"
    """`flash` (also SDPA's memory-efficient kernels) or `eager`."""
    loss: str = "upcast"
    """Loss kernel, a key of `bench.planner.logits.KERNELS`."""
    optimizer: str = "fused"
    """Temporaries of the step: `fused` none, `plain` one tensor at a time, `foreach` all at once."""
    offload_optimizer: bool = False
    precision: Precision = field(default_factory=Precision)
    lora_rank: int = 0
    lora_dropout: float = 0.0
    targets: tuple[str, ...] = ()
    zero: ZeroOptions = field(default_factory=ZeroOptions)
    fused_kernels: bool = False
    """Norms, rotary embedding and MLP run in fused kernels (not in the suite): less traffic, same bytes."""
    fused_qkv: bool = False
    """Query, key and value come out of one product, which value keeps alive as a whole (not in the suite)."""
    frozen_inputs_kept: bool = False
    """Frozen layers keep their input all the same (4-bit layers of bitsandbytes 0.41; not in the suite)."""
    adapter_copy: int = 0
    """Bytes per element of the input copy that each adapter makes for itself (PEFT with fp32 adapters: 2 under
    autocast, 4 without); 0 where adapters share their layer's input, as in the suite's worker."""

    @cached_property
    def layout(self) -> Job:
        """This job with one token a rank: what depends on parameters alone is remembered under it."""
        return replace(self, micro_batch=1, seq_len=self.sp, accumulation=1)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.world_size // (self.tp * self.pp * self.sp)

    @property
    def shards(self) -> int:
        """Ranks that share optimizer state: ZeRO counts data and sequence ranks together."""
        return self.dp * self.sp

    @property
    def tokens(self) -> int:
        """Positions that one rank computes in one micro-batch; samples are padded to a multiple of the ranks."""
        return self.micro_batch * -(-self.seq_len // self.sp)

    @property
    def lora(self) -> bool:
        """Adapters on a frozen base."""
        return self.tuning == "lora"


_ATTENTION = {"sdpa": "flash", "flash_attention_2": "flash", "eager": "eager"}


def attention_kernel(case: Case) -> str:
    """`flash` or `eager`, by what a kernel keeps in memory."""
    return _ATTENTION[case.attention]


def has_masters(case: Case) -> bool:
    """Whether the optimizer steps fp32 copies: in half precision, and in fp32 where ZeRO 1–3 clone partitions."""
    return case.precision != "fp32" or (case.engine == "deepspeed" and case.zero_stage != 0)


def job_of(case: Case, world_size: int, shape: ModelShape, config: Mapping[str, Any] | None = None) -> Job:
    """Translate a case as the suite's worker runs it.

    Half precision keeps weights and gradients in half, and fp32 masters and two fp32 moments of what is
    trained. In fp32 ZeRO 1–3 still clone their flat partitions; DDP and ZeRO-0 step the weights themselves.

    Args:
        case: the case.
        world_size: ranks over all nodes.
        shape: its model.
        config: the resolved DeepSpeed config; by default resolved from the case's template.
    """
    half = case.precision != "fp32"
    if case.engine == "deepspeed" and config is None:
        config = resolve(case, world_size)
    element = HALF if half else FULL
    return Job(
        shape=shape, tuning=case.tuning, micro_batch=case.micro_batch_size, seq_len=case.seq_len,
        engine="ddp" if case.engine == "ddp" else "zero", zero_stage=case.zero_stage or 0,
        world_size=world_size, tp=case.tp_size, pp=case.pp_size, sp=case.sp_size,
        accumulation=case.accumulation_steps(world_size),
        gradient_checkpointing=case.gradient_checkpointing, attention=attention_kernel(case),
        optimizer="fused" if case.optimizer == "adamw_fused" else "plain",
        offload_optimizer=case.offload_optimizer == "cpu",
        precision=Precision(
            compute=element, weights=element, gradients=element, adapters=element,
            master=FULL if has_masters(case) else 0,
        ),
        lora_rank=case.lora_rank or 0, lora_dropout=case.lora_dropout or 0.0,
        targets=case.target_modules or (), zero=ZeroOptions.read(config or {}),
    )  # fmt: skip
