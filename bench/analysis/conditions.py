"""What must be equal for two numbers to be comparable, and what is meant to differ: the axis."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.launch import Launch
from bench.analysis.metrics import METERS, Metric, Scope
from bench.analysis.release import Release, flat
from bench.errors import SpecError
from bench.records.schema import Environment
from bench.spec.case import Case

ALL: frozenset[Scope] = frozenset(("time", "memory", "bytes", "accuracy"))
_IGNORED = {"id", "timeout_s", "keep_checkpoint"}
"""Fields of a case that change no number."""
_SCOPES: dict[str, frozenset[Scope]] = {
    "eval_samples": frozenset(("accuracy",)),
    "eval_split": frozenset(("accuracy",)),
    "eval_batch_size": frozenset(),
    "save_checkpoint": frozenset(("bytes",)),
    "memory_steps": frozenset(("memory",)),
}
"""Fields that spoil only some metrics; every other field spoils all."""
_MACHINE = (
    "device", "device_kind", "devices_per_node", "device_memory_bytes", "topology", "cpu", "cpu_count",
    "host_memory_bytes", "threads_per_rank",
)  # fmt: skip
"""The machine: differences spoil time and memory."""
_HOST_MEMORY_SLACK = 0.02
"""A kernel keeps a slightly different part for itself from boot to boot."""


@dataclass(frozen=True)
class Difference:
    """One thing in which two environments differ."""

    name: str
    baseline: Any
    candidate: Any
    role: str
    """`axis` (meant to differ), `machine` (spoils time and memory), `beyond` (software that was to be equal)."""


@dataclass(frozen=True)
class Conditions:
    """How the environments of two releases differ."""

    differences: list[Difference]
    axis: list[str]
    """Names that are meant to differ, without the prefix `versions.`."""
    stated: bool
    """Whether `--axis` named them."""

    def spoiled(self) -> list[tuple[str, frozenset[Scope]]]:
        """Environment fields that make metrics not comparable, with the scopes they spoil."""
        machine: frozenset[Scope] = frozenset(("time", "memory"))
        found = {"machine": machine, "beyond": ALL}
        return [(short(d.name), found[d.role]) for d in self.differences if d.role in found]


def environments(baseline: Environment | None, candidate: Environment | None, axis: Sequence[str]) -> Conditions:
    """Sort the differences of two environments into axis, machine and what should have been equal.

    Args:
        baseline: of the first release; None where unknown.
        candidate: of the last.
        axis: names or shell patterns of what is meant to differ (`deepspeed`, `driver`, `variables.NCCL_*`, or a
            field of the case); empty takes every difference in software.
    """
    left, right = flat(baseline), flat(candidate)
    names = sorted(left | right) if left and right else []
    differences = []
    for name in names:
        a, b = left.get(name), right.get(name)
        if a == b or (name == "host_memory_bytes" and abs(a - b) <= _HOST_MEMORY_SLACK * max(a, b)):
            continue
        machine = name in _MACHINE
        meant = _named(name, axis) if axis else not machine
        differences.append(Difference(name, a, b, "axis" if meant else "machine" if machine else "beyond"))
    found = [short(d.name) for d in differences if d.role == "axis"]
    return Conditions(differences, list(axis) or found, bool(axis))


def check_axis(axis: Sequence[str], releases: Iterable[Release]) -> None:
    """Raise SpecError where a name of the axis is neither in an environment nor a field of a case."""
    known = {short(name) for release in releases for name in flat(release.environment)}
    known |= {name for release in releases for name in flat(release.environment)} | set(Case.model_fields)
    for pattern in axis:
        if not fnmatch.filter(known, pattern):
            versions = sorted(name for name in known if "." not in name)
            raise SpecError(f"--axis {pattern!r} is nothing that was recorded; accepted: {', '.join(versions)}")


def short(name: str) -> str:
    """A name without `versions.`, as people type it."""
    return name.removeprefix("versions.")


def _named(name: str, axis: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, a) or fnmatch.fnmatchcase(short(name), a) for a in axis)


def spoiled(
    baseline: Sequence[Launch], candidate: Sequence[Launch], axis: Sequence[str]
) -> dict[str, frozenset[Scope]]:
    """Fields in which two sides of one case differ, with the metrics' scopes that they spoil.

    Args:
        baseline: launches of the case on one side.
        candidate: on the other.
        axis: what is meant to differ.
    """
    found: dict[str, frozenset[Scope]] = {}
    first = baseline[0]
    others = [*baseline[1:], *candidate]
    for other in others:
        if other.case is not first.case and other.case != first.case:
            found |= _differing_case(first.case, other.case)
    facts = [launch.facts for launch in (first, *others) if launch.status == "ok"]
    for other in facts[1:]:
        if other is not facts[0] and other != facts[0]:
            found |= _differing_facts(facts[0], other)
    if found:
        _excuse(found, facts)
    return {name: scopes for name, scopes in found.items() if scopes and not _named(name, axis)}


def _differing_case(a: dict[str, Any], b: dict[str, Any]) -> dict[str, frozenset[Scope]]:
    names = (a.keys() | b.keys()) - _IGNORED
    return {name: _SCOPES.get(name, ALL) for name in sorted(names) if _field(a, name) != _field(b, name)}


def _field(case: dict[str, Any], name: str) -> Any:
    """A field's value; a release that did not have it yet behaved like its default."""
    known = Case.model_fields.get(name)
    return case.get(name, known.get_default(call_default_factory=True) if known else None)


def _differing_facts(a: dict[str, Any], b: dict[str, Any]) -> dict[str, frozenset[Scope]]:
    """Facts that both sides know and that differ; `ranks` spoils what is taken over ranks."""
    scopes: dict[str, frozenset[Scope]] = {"ranks": frozenset(("memory",)), "device": frozenset(("time", "memory"))}
    return {
        name: scopes.get(name, ALL)
        for name in a
        if a[name] != b.get(name) and a[name] is not None and b.get(name) is not None
    }


def _excuse(found: dict[str, frozenset[Scope]], facts: Sequence[dict[str, Any]]) -> None:
    """A path says less than what was found behind it: the fingerprint of the data, the counted parameters."""
    fingerprints = {fact["data_fingerprint"] for fact in facts}
    if len(fingerprints) == 1 and None not in fingerprints:
        for name in ("data", "data_split"):
            found.pop(name, None)
    sizes = {(fact["parameters"], fact["trainable_parameters"]) for fact in facts}
    if "model" in found and len(sizes) == 1 and (None, None) not in sizes:
        found["model"] = frozenset(("accuracy",))  # equal shapes cost the same, whatever their weights learn


def other_meter(metric: Metric, side: set[str]) -> str | None:
    """The meter that a side used instead of the metric's own; None for other metrics."""
    if metric.scope != "memory":
        return None
    names = [meter for meter, name in METERS.items() if name in side and meter not in ("resident", "device")]
    return names[0] if names else None
