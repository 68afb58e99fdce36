"""Older schema versions: each step brings a raw record to the next version, or refuses it by name.

A field that is only added needs a step that fills it with null and a reason in `missing`; a field whose
meaning changed cannot be brought over, so that its version is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.errors import RecordError
from bench.records.schema import SCHEMA_VERSION

Raw = dict[str, Any]


def _without_plan(raw: Raw) -> Raw:
    """1 → 2: cases store their prediction; older ones have none. `run.json` did not change."""
    if "case" not in raw or not isinstance(raw.get("missing"), dict):
        return raw
    return raw | {"plan": None, "missing": raw["missing"] | {"plan": "recorded before cases stored their prediction"}}


STEPS: dict[int, Callable[[Raw], Raw]] = {1: _without_plan}
"""Version → function that brings a record of that version to the next one."""


def migrate(raw: Any, path: Path) -> Raw:
    """Bring a raw record to the version this release reads.

    Args:
        raw: parsed JSON of a `run.json` or `case.json`.
        path: where it came from, for the error.

    Raises:
        RecordError: no version, a newer one, or one that no step leads away from.
    """
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version > SCHEMA_VERSION:
        raise RecordError(f"{path}: schema_version {version!r} is not known; this release reads {readable()}")
    while version < SCHEMA_VERSION:
        if version not in STEPS:
            raise RecordError(
                f"{path}: schema_version {version} is refused, its numbers mean something else; "
                f"this release reads {readable()}"
            )
        raw, version = STEPS[version](raw) | {"schema_version": version + 1}, version + 1
    return raw


def readable() -> str:
    """Versions that can be read, for messages."""
    known = [v for v in range(1, SCHEMA_VERSION) if all(s in STEPS for s in range(v, SCHEMA_VERSION))]
    return ", ".join(map(str, [*known, SCHEMA_VERSION]))
