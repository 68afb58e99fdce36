"""Memory of one rank as it is stored: by meter, by category, and by what its shards hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from bench.records.base import Record

HOST = "host"
"""Category of what lies in the memory of the host: shown, but in no total. Told apart in rehearsals alone."""


class PhaseMemory(Record):
    """Peaks of one rank in one phase, by meter. Which meter a table shows, it names."""

    allocated_peak_bytes: int | None
    """torch's allocator, tensors in use; null on CPU."""
    reserved_peak_bytes: int | None
    """torch's allocator, taken from the driver; null on CPU."""
    device_used_bytes: int | None
    """Driver's view of the device at the phase's end, other processes included; null on CPU."""
    resident_peak_bytes: int | None
    """Peak resident set of the process; says little below 100 MB."""


class TallyPhase(Record):
    """Live tensor bytes of one rank at the highest point of one phase, by category."""

    peak_bytes: int
    by_category: dict[str, int]
    """weights, gradients, master_weights, optimizer_state, activations, logits, gathered, buckets,
    batch, temporaries, other; they sum to `peak_bytes`. HOST is beside them."""


def widest_phase(phases: Mapping[str, TallyPhase]) -> str | None:
    """The phase that peaks highest, the first of equals; None where there is none."""
    return max(phases, key=lambda name: phases[name].peak_bytes, default=None)


class MemoryPass(Record):
    """The traced steps of one rank: where the bytes are at each phase's peak."""

    status: Literal["ok", "oom", "crashed", "skipped"]
    reason: str | None = None
    phases: dict[str, TallyPhase] = Field(default_factory=dict)
    """forward, backward, step; `steady` is what lives between two steps."""
    peak_bytes: int | None = None
    """Highest point over all phases."""
    counter_peak_bytes: int | None = None
    """The allocator's own peak in the timed pass; null on CPU."""
    flagged: str | None = None
    """Set where tally and counter differ by more than 1 %."""


class Shards(Record):
    """What one rank really holds, counted from the engine's own tensors."""

    weight_elements: int
    """Elements of model parameters stored here between steps."""
    trainable_elements: int
    """Of these, trainable ones."""
    optimizer_elements: int
    """Elements of master weights and moments stepped by this rank's optimizer (weights counted once)."""
    optimizer_state_bytes: int
    """Bytes of master weights and optimizer state held by this rank, wherever they live."""
    part_elements: int | None = None
    """Elements of this rank's part of the model (its stage's tensor shards) before ZeRO shards them."""
    part_trainable_elements: int | None = None
    """Of these, trainable ones."""
