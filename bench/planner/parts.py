"""What the moments of a step are put together from: components, and what an engine holds of gradients at the time."""

from __future__ import annotations

from dataclasses import dataclass

from bench.planner.activations import BlockBytes
from bench.planner.gather import Gathered
from bench.planner.gradients import Arrivals, early_gradients, late_gradients
from bench.planner.job import Job
from bench.planner.parameters import Stage, trained_elements
from bench.planner.states import States

COMPONENTS = (
    "weights", "gradients", "master_weights", "optimizer_state", "activations", "logits", "gathered",
    "buckets", "batch", "temporaries",
)  # fmt: skip
PHASES = ("forward", "backward", "step", "save")


@dataclass(frozen=True)
class Moment:
    """Bytes by component at one moment of a step."""

    phase: str
    at: str
    """What happens then, in words."""
    components: dict[str, float]

    @property
    def total(self) -> float:
        """All components."""
        return sum(self.components.values())


@dataclass(frozen=True)
class Parts:
    """Everything the moments are put together from."""

    job: Job
    stage: Stage
    held: States
    block: BlockBytes
    logits: dict[str, float]
    fetched: Gathered
    arriving: Arrivals
    kept: float
    """Activations kept for backward by all blocks in flight."""
    around: float
    """Kept outside of the blocks: rotary tables, final norm, the head's input."""
    batch: float
    outputs: float
    """Logits that DeepSpeed's pipeline engine keeps in its buffers until they are used again."""


def moment(parts: Parts, phase: str, at: str, **more: float) -> Moment:
    """What is always held, and bytes by component of what is there beside it."""
    held = parts.held
    components = {
        "weights": held.weights, "master_weights": held.master_weights,
        "optimizer_state": held.optimizer_state, "batch": parts.batch, **more,
    }  # fmt: skip
    components["logits"] = components.get("logits", 0.0) + parts.outputs
    return Moment(phase, at, {name: components.get(name, 0.0) for name in COMPONENTS})


def early(parts: Parts) -> dict[str, float]:
    """Gradients and buckets before a micro-batch's first gradient; DDP and ZeRO-3 hold theirs all the time."""
    if _constant(parts.job):
        return {"gradients": parts.held.gradients, "buckets": parts.held.buckets}
    if parts.job.engine == "torch":
        return {"gradients": 0.0, "buckets": 0.0}
    return _with_held(parts, early_gradients(parts.job, parts.stage))


def late(parts: Parts, done: float) -> dict[str, float]:
    """Gradients and buckets when a share of the trained elements has its gradient."""
    job = parts.job
    if _constant(job):
        return early(parts)
    if job.engine == "torch":
        whole = job.precision.gradients * trained_elements(job, parts.stage)
        return {"gradients": whole / (job.shards if job.zero_stage == 3 else 1) * done, "buckets": 0.0}
    return _with_held(parts, late_gradients(job, parts.stage, done))


def _constant(job: Job) -> bool:
    return job.engine == "ddp" or (job.engine == "zero" and job.zero_stage == 3)


def _with_held(parts: Parts, more: dict[str, float]) -> dict[str, float]:
    return {**more, "buckets": more["buckets"] + parts.held.buckets}


def shared_tables(job: Job) -> float:
    """Cosine and sine in the compute type, int64 positions, and the eager kernel's causal mask, one for all blocks."""
    e = job.precision.compute
    mask = e * job.seq_len * job.tokens if job.attention == "eager" else 0
    return 2 * e * job.shape.head_dim * job.seq_len / job.sp + 8.0 * job.seq_len + mask
