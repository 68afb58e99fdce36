"""The part of a `case.json` that comparisons read, as typed dictionaries: names and types are `CaseRecord`'s.

Typed dictionaries are checked as strictly as models and cost a quarter of the time; fields that are not named here
are scanned past. A unit test holds the two together.
"""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict


class Phase(TypedDict):
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    device_used_bytes: int | None
    resident_peak_bytes: int | None


class Phases(TypedDict):
    first_step: NotRequired[Phase]
    warmup: NotRequired[Phase]
    timed: NotRequired[Phase]


class Pass(TypedDict):
    peak_bytes: NotRequired[int | None]


class Rank(TypedDict):
    rank: int
    device: str
    memory: NotRequired[Phases]
    memory_pass: NotRequired[Pass | None]
    outside_engine_s: NotRequired[float | None]


class Parameters(TypedDict):
    total: int
    trainable: int
    base: int


class Data(TypedDict):
    fingerprint: str


class Timed(TypedDict):
    steps: int
    window_s: float
    step_s: list[float]
    data_wait_s: float | None
    samples: int
    tokens: int


class Evaluation(TypedDict):
    samples: int
    loss_sum: float | None
    loss_tokens: int | None
    correct_tokens: int | None
    exact_samples: int | None


class Evaluations(TypedDict):
    after: NotRequired[Evaluation]


class Checkpoint(TypedDict):
    export_bytes: int | None
    export_s: float | None
    native_bytes: dict[str, int]
    save_s: float | None
    load_s: float | None


class ComparedCase(TypedDict):
    """The compared part of `CaseRecord`; names and types are its own."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # type: ignore[misc]
    schema_version: int
    case: dict[str, Any]
    repeat: int
    status: str
    reason: str | None
    world_size: int
    wall_s: float | None
    phases_s: dict[str, float]
    parameters: Parameters | None
    data: Data | None
    timed: Timed | None
    losses: list[float | None]
    evaluation: Evaluations
    checkpoint: Checkpoint | None
    ranks: list[Rank]
    missing: dict[str, str]


ADAPTER = TypeAdapter(ComparedCase)
