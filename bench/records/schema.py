"""The results' schema: what one run and one case leave behind, raw, with units in the names.

Everything that can be computed from these facts (samples/s, MFU, ratios) is derived when it is
read, in `bench.analysis.derive`, so that a corrected formula needs no rerun. Missing is null, with the
reason in `missing`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bench.records.base import Record
from bench.records.memory import MemoryPass, PhaseMemory, Shards
from bench.records.planned import PlanRecord
from bench.spec.case import Case

SCHEMA_VERSION = 2
Status = Literal["ok", "oom", "timeout", "crashed", "unsupported", "skipped"]


class Environment(Record):
    """Where and with what a run was made."""

    versions: dict[str, str | None]
    """Python and packages that decide speed or memory; null where not installed."""
    device: str
    """Accelerator name as its driver gives it, or the processor's model name."""
    device_kind: Literal["cpu", "cuda", "xpu", "npu"]
    devices_per_node: int
    """Accelerators visible on a node; 0 on a CPU machine."""
    device_memory_bytes: int | None
    """Memory of one accelerator as its driver gives it; null on CPU."""
    driver: str | None
    topology: str | None
    """Links between the devices as `nvidia-smi topo -m` prints them; null on CPU."""
    cpu: str
    cpu_count: int
    host_memory_bytes: int
    threads_per_rank: int | None
    """Intra-operator threads of each worker."""
    platform: str
    commit: str | None
    dirty: bool | None
    """Uncommitted changes in the project's checkout."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that change speed or numerics (NCCL_*, OMP_*, PYTORCH_* …)."""


class RunRecord(Record):
    """One run of a suite: `run.json`."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    suite: str
    suite_description: str
    suite_text: str
    """The suite's YAML as it was read."""
    headline: dict[Literal["full", "lora"], str] | None
    overrides: dict[str, Any]
    """Fields replaced on the command line."""
    command: list[str]
    launcher: str
    world_size: int
    hosts: list[str]
    """Host of each rank."""
    hostfile: str | None
    planned: list[str]
    """Case ids in the order of the suite."""
    repeats: int = 1
    started_at: str
    """ISO 8601, UTC."""
    finished_at: str | None = None
    complete: bool = False
    """Every planned case and repeat has a record."""
    interrupted: str | None = None
    """Why the run ended early."""
    environment: Environment


class PipelineTime(Record):
    """What a pipeline stage did over the timed steps; the bubble is what the longest schedule has besides."""

    compute_s: float
    """Seconds inside forward and backward passes."""
    schedule_s: float
    """Seconds from the start of each step to the end of its last pass."""


class RankRecord(Record):
    """What one rank measured: `rank<r>.json` of the worker."""

    rank: int
    host: str
    device: str
    mesh: dict[str, int]
    """Coordinates: dp, tp, pp, sp."""
    phases_s: dict[str, float]
    """Wall seconds by phase, in order: start, build, engine, data, evaluate_before, first_step,
    warmup, timed, evaluate_after, export, save, load, memory_pass …"""
    memory: dict[str, PhaseMemory] = Field(default_factory=dict)
    """Peaks by phase."""
    memory_pass: MemoryPass | None = None
    shards: Shards | None = None
    window_s: float | None = None
    """Seconds from the start of the first timed step to the end of the last, all gaps included."""
    outside_engine_s: float | None = None
    """Of the window, seconds spent in the loop itself: neither in the engine nor waiting for data."""
    skipped_steps: int | None = None
    """Steps that the loss scaler skipped."""
    pipeline: PipelineTime | None = None
    """Null without pipeline stages."""


class DataFacts(Record):
    """What was fed."""

    source: str
    fingerprint: str
    """SHA-256 over the token ids and labels of the training and held-out samples, in order."""
    rows: int
    """Rows of the source."""
    train_rows: int
    """Rows left for training."""
    train_samples: int
    """Distinct training samples tokenised for this case."""
    eval_samples: int
    """Held-out samples really evaluated."""
    epochs: float
    """Passes over the training rows."""
    truncated: int
    """Training samples cut to `seq_len`."""
    dropped: int
    """Rows left out because truncation left no token to learn."""
    length_mean: float
    length_p50: float
    length_p95: float
    length_max: int
    answer_tokens_mean: float
    """Tokens per sample that count in the loss."""


class ModelDims(Record):
    """Dimensions that decide FLOPs and bytes, from the model's own config."""

    architecture: str
    """Class name, e.g. Qwen2ForCausalLM."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    """Not always hidden / heads (Qwen3-32B: 64 heads × 128 with hidden 5120)."""
    intermediate: int
    vocab: int
    tied_embeddings: bool


class Parameters(Record):
    """Counted on the unwrapped, unsharded model."""

    total: int
    """Base model and adapters; tied weights once."""
    trainable: int
    base: int
    """The model before adapters."""
    embedding: int
    """Input embedding, and output head where it is not tied."""


class CheckpointFacts(Record):
    """What a save costs, and the proof that it loads."""

    export_bytes: int
    """Hugging Face weights (full) or PEFT adapter (lora), all files of the folder that hold tensors."""
    export_s: float
    native_bytes: dict[str, int]
    """The engine's resume checkpoint over all ranks by role: weights, optimizer, other."""
    save_s: float
    """Slowest rank, native save."""
    load_s: float | None
    """Slowest rank, native load into the live engine."""
    reload_s: float | None = None
    """Loading the export in a fresh process."""
    reload_loss: float | None = None
    """Held-out loss of the export in the fresh process."""
    trained_loss: float | None = None
    """Held-out loss of the live engine over the same samples."""
    verified: bool | None = None
    """Both losses agree within the tolerance of the precision; null where it could not be tried."""
    reason: str | None = None
    """Why it is not verified, or was not saved."""
    kept: str | None = None
    """Folder, relative to the case, where the export was left."""


class Evaluation(Record):
    """Sums over the held-out samples, each sample once."""

    samples: int
    loss_sum: float
    loss_tokens: int
    correct_tokens: int
    exact_samples: int
    """Samples whose whole answer is the teacher-forced argmax."""


class Timed(Record):
    """Sufficient statistics of the timed steps over all ranks."""

    steps: int
    """Timed optimizer steps; steps that the loss scaler skipped are left out."""
    window_s: float
    """Slowest rank's window."""
    step_s: list[float]
    """Slowest rank of each timed step."""
    data_wait_s: float
    """Slowest rank's total wait for batches within the window."""
    samples: int
    """Real training examples fed over all data-parallel ranks, each once."""
    tokens: int
    """Non-padding tokens of these."""
    padded_tokens: int
    """Positions computed, padding included."""
    loss_tokens: int


class CaseRecord(Record):
    """One case and repeat: `case.json`."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    case: Case
    repeat: int
    """1 for the first independent launch of the case."""
    status: Status
    reason: str | None
    """Why it is not ok."""
    failing_rank: int | None = None
    log_tail: str | None = None
    """Last lines of the failing rank's log."""
    world_size: int
    mesh: dict[str, int] | None
    """Axis sizes: dp, tp, pp, sp; null where the layout does not exist."""
    accumulation_steps: int | None
    started_at: str
    wall_s: float
    """From the first process started to the last one gone."""
    phases_s: dict[str, float]
    """Slowest rank of each phase."""
    outside_steps_s: float | None
    """Wall time of the case outside its training steps."""
    remarks: list[str]
    """Caveats a reader must know."""
    model: ModelDims | None
    parameters: Parameters | None
    data: DataFacts | None
    timed: Timed | None
    losses: list[float | None]
    """Loss of each optimizer step, warm-up included: summed token loss over summed tokens."""
    grad_norms: list[float | None]
    evaluation: dict[Literal["before", "after"], Evaluation]
    checkpoint: CheckpointFacts | None
    ranks: list[RankRecord]
    plan: PlanRecord | None = None
    """What the closed form predicted before the case started."""
    missing: dict[str, str]
    """Field → why it is null or empty."""
