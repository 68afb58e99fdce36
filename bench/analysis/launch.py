"""One launch as a comparison needs it: the few facts of a `case.json`, read fast.

A comparison may read 20,000 records. Building every `CaseRecord` would take most of its time, so only the fields that
are compared are parsed and checked (strict types, no NaN), and the rest of the file is scanned past.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError

from bench.analysis import derive
from bench.analysis.compared_fields import ADAPTER
from bench.analysis.metrics import METERS
from bench.errors import RecordError
from bench.records.migrations import migrate
from bench.records.schema import SCHEMA_VERSION

TRAINING = ("first_step", "warmup", "timed")
"""Phases whose peaks count, as in `derive.rank_peaks`."""
_METRIC = {name: name for name in METERS.values()} | {"device_used_bytes": METERS["device"]}
"""Field of `PhaseMemory` → metric."""
STARTUP = ("start", "build", "engine", "data", "first_step")
"""Phases between the launch and the first finished step."""


@dataclass(slots=True)
class Launch:
    """One independent launch of one case."""

    case_id: str
    repeat: int
    status: str
    """As recorded, or `unreadable`."""
    reason: str | None
    path: str
    case: dict[str, Any] = field(default_factory=dict)
    """Fields of the case as stored, without its id, so that equal ones can be shared."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found at run time and must agree: world size, ranks, devices, parameters, data."""
    values: dict[str, float] = field(default_factory=dict)
    """Metric → value; what was not measured is absent."""
    counts: tuple[int, int, int, int] | None = None
    """Held-out samples, whole answers right, answer tokens, of these right."""
    curve: tuple[str, int, int] | None = None
    """What is wrong with the loss curve: `curve_short` (points, steps) or `curve_gap` (step, steps)."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of one step by component: engine, data_wait, loop."""
    phases: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase."""

    def __reduce__(self) -> tuple[type[Launch], tuple[Any, ...]]:
        """Travel between processes as a plain tuple: a third of the default's time."""
        return Launch, tuple(getattr(self, name) for name in self.__slots__)


def read_launch(path: str) -> Launch:
    """Read one record.

    Args:
        path: a `case.json`.

    Returns:
        The launch; a file that is no valid record gives status `unreadable` and says why, so that one broken
        file among thousands counts as that case's failure.

    Raises:
        RecordError: the schema version is not known.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        raw = ADAPTER.validate_json(data)
        if raw["schema_version"] != SCHEMA_VERSION:
            raw = _older(json.loads(data), path)
    except ValidationError as error:
        return _unreadable(path, data, error)
    return _launch(raw, path)


def _unreadable(path: str, data: bytes, error: ValidationError) -> Launch:
    try:
        raw = json.loads(data)
    except ValueError:
        raw = None
    if isinstance(raw, dict) and raw.get("schema_version") != SCHEMA_VERSION:
        try:
            return _launch(_older(raw, path), path)
        except ValidationError as again:
            error = again
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    folder = Path(path).parent
    repeat = folder.name.removeprefix("r")
    return Launch(
        case_id=folder.parent.name, repeat=int(repeat) if repeat.isdecimal() else 1, path=path,
        status="unreadable", reason=f"{where}: {first['msg']}" if where else first["msg"],
    )  # fmt: skip


def _older(raw: Any, path: str) -> Any:
    """Migrate and check a record of an older version; its JSON keeps the type rules of the fast path."""
    return ADAPTER.validate_json(json.dumps(migrate(raw, Path(path))))


def _launch(raw: Any, path: str) -> Launch:
    case = raw["case"]
    if "id" not in case:
        raise RecordError(f"{path}: case.id is missing")
    case_id = str(case.pop("id"))
    _null_out(raw)
    launch = Launch(case_id, raw["repeat"], raw["status"], raw["reason"], path, case)
    launch.phases = raw["phases_s"]
    launch.facts = _facts(raw)
    if launch.status == "ok":
        launch.values = _values(raw)
        launch.counts = _counts(raw["evaluation"].get("after"))
        launch.parts = _parts(raw)
        launch.curve = _curve(raw)
    return launch


def _null_out(raw: Any) -> None:
    """Honour `missing` for fields that the schema could not store as null (foreign results)."""
    for name in raw["missing"]:
        *parents, last = name.split(".")
        target: Any = raw
        for parent in parents:
            target = target.get(parent) if isinstance(target, dict) else None
        if isinstance(target, dict) and last in target and not isinstance(target[last], list | dict):
            target[last] = None


def _facts(raw: Any) -> dict[str, Any]:
    parameters, data = raw["parameters"] or {}, raw["data"] or {}
    return {
        "world_size": raw["world_size"],
        "ranks": len(raw["ranks"]) or None,
        "device": ", ".join(sorted({rank["device"].split(":")[0] for rank in raw["ranks"]})) or None,
        "parameters": parameters.get("total"),
        "trainable_parameters": parameters.get("trainable"),
        "base_parameters": parameters.get("base"),
        "data_fingerprint": data.get("fingerprint"),
    }


def _values(raw: Any) -> dict[str, float]:
    view = SimpleNamespace(
        timed=_view(raw["timed"]), checkpoint=_view(raw["checkpoint"]), ranks=[],
    )  # fmt: skip
    after = _view(raw["evaluation"].get("after"))
    checkpoint, phases = raw["checkpoint"] or {}, raw["phases_s"]
    values = {
        "step_s": _try(derive.step_s, view),
        "samples_per_s": _try(derive.samples_per_s, view),
        "tokens_per_s": _try(derive.tokens_per_s, view),
        "checkpoint_bytes": _try(derive.checkpoint_bytes, view),
        "resume_bytes": sum(checkpoint.get("native_bytes", {}).values()) or None,
        "exact_match": _try(derive.exact_match, after),
        "token_accuracy": _try(derive.token_accuracy, after),
        "eval_loss": _try(derive.eval_loss, after),
        "train_loss": _tail(raw["losses"]),
        "startup_s": sum(phases.get(name, 0.0) for name in STARTUP) or None,
        **{f"{name}_s": checkpoint.get(f"{name}_s") for name in ("save", "load", "export")},
        "wall_s": raw["wall_s"],
        **_peaks(raw["ranks"]),
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def _view(part: dict[str, Any] | None) -> Any:
    return None if part is None else SimpleNamespace(**part)


def _try(formula: Callable[[Any], float | None], view: Any) -> float | None:
    """A metric, or None where one of its terms is null or counts nothing."""
    try:
        return formula(view)
    except (TypeError, ZeroDivisionError):
        return None


def _peaks(ranks: list[Any]) -> dict[str, int]:
    """`derive.peak_bytes` by every meter in one pass; a unit test holds the two together."""
    peaks: dict[str, int] = {}
    for rank in ranks:
        tally = (rank.get("memory_pass") or {}).get("peak_bytes")
        if tally is not None and tally > peaks.get(METERS["tally"], -1):
            peaks[METERS["tally"]] = tally
        for name, phase in rank.get("memory", {}).items():
            if name not in TRAINING:
                continue
            for meter, value in phase.items():
                metric = _METRIC[meter]
                if value is not None and value > peaks.get(metric, -1):
                    peaks[metric] = value
    return peaks


def _tail(losses: list[float | None]) -> float | None:
    """Mean loss over the last quarter of the steps, at least one."""
    tail = losses[-max(1, len(losses) // 4) :]
    return None if not tail or None in tail else sum(tail) / len(tail)


def _curve(raw: Any) -> tuple[str, int, int] | None:
    losses, steps = raw["losses"], raw["case"].get("steps")
    if "losses" in raw["missing"] or not isinstance(steps, int):
        return None
    if None in losses:
        return "curve_gap", losses.index(None), steps
    return ("curve_short", len(losses), steps) if len(losses) < steps else None


def _counts(after: Any) -> tuple[int, int, int, int] | None:
    if after is None or after["exact_samples"] is None or not after["samples"]:
        return None
    return after["samples"], after["exact_samples"], after["loss_tokens"] or 0, after["correct_tokens"] or 0


def _parts(raw: Any) -> dict[str, float]:
    """Seconds of one step by component, by the slowest rank's sums over the timed window."""
    timed = raw["timed"]
    loop = [r.get("outside_engine_s") for r in raw["ranks"]]
    if timed is None or not timed["steps"] or timed["data_wait_s"] is None or None in loop or not loop:
        return {}
    waits, outside = timed["data_wait_s"], max(loop)
    engine = timed["window_s"] - waits - outside
    seconds = {"engine": engine, "data_wait": waits, "loop": outside}
    return {name: value / timed["steps"] for name, value in seconds.items()}
