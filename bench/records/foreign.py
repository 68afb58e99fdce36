"""Other tools' results as records of this suite: peft's method comparison and fms-acceleration's benchmark tables.

What a source lacks stays null with its reason in `missing`. Where the schema wants a number all the same, a zero
stands in and `missing` names the field by its dotted path (`timed.data_wait_s`): comparisons read it as null.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.errors import RecordError
from bench.records import foreign_fms, foreign_peft
from bench.records.folder import case_folder, write_record
from bench.records.schema import CaseRecord, Environment, RunRecord

FORMATS = ("peft", "fms")
MIXED = "mixed: "


@dataclass
class Imported:
    """What became of a source."""

    run: RunRecord
    cases: list[CaseRecord]
    skipped: list[str] = field(default_factory=list)
    """Entries that this schema cannot hold, each with its reason."""


def convert(sources: Sequence[Path], form: str | None, facts: Mapping[str, str], command: Sequence[str]) -> Imported:
    """Read foreign results.

    Args:
        sources: files, or folders whose files of the format are taken.
        form: `peft` or `fms`; None decides by each file's content.
        facts: what the user knows and the source does not say: `device`, or a version by name.
        command: of this import, kept in the run.

    Raises:
        RecordError: a file is of no known format, or nothing could be imported.
    """
    cases: list[CaseRecord] = []
    versions: dict[str, set[str | None]] = {}
    devices: set[str] = set()
    skipped: list[str] = []
    for path in _files(sources):
        for entry in _entries(path, form):
            if isinstance(entry, str):
                skipped.append(f"{path.name}: {entry}")
                continue
            fields, environment = entry
            record = _record(path, fields, cases)
            cases.append(record)
            devices.add(environment.pop("device", None) or "unknown")
            for name, version in environment.items():
                versions.setdefault(name, set()).add(version)
    if not cases:
        raise RecordError(f"{', '.join(map(str, sources))}: nothing to import" + (f"; {skipped[0]}" if skipped else ""))
    merged = {name: _merged(values) for name, values in versions.items()}
    run = _run(sources, cases, merged, _merged(devices) or "unknown", facts, command)
    return Imported(run, cases, skipped)


def write(imported: Imported, folder: Path) -> None:
    """Write an import as a results folder; raises RecordError where the folder holds results already."""
    if (folder / "run.json").exists():
        raise RecordError(f"{folder} holds results already; give another folder with --out")
    for record in imported.cases:
        where = case_folder(folder, record.case.id, record.repeat)
        where.mkdir(parents=True, exist_ok=True)
        write_record(where / "case.json", record)
    write_record(folder / "run.json", imported.run)


def _files(sources: Sequence[Path]) -> list[Path]:
    found = []
    for source in sources:
        found += sorted([*source.glob("*.json"), *source.glob("*.csv")]) if source.is_dir() else [source]
    if not found:
        raise RecordError(f"{', '.join(map(str, sources))}: no json or csv file")
    return found


def _entries(path: Path, form: str | None) -> Iterable[str | tuple[dict[str, Any], dict[str, Any]]]:
    """Fields of case records and their environments; a text says why an entry is left out."""
    text = path.read_text(encoding="utf-8-sig")
    if form == "fms" or (form is None and path.suffix == ".csv"):
        rows = list(csv.DictReader(text.splitlines()))
        missing = foreign_fms.NEEDED - set(rows[0] if rows else ())
        if missing:
            raise RecordError(f"{path}: no fms-acceleration benchmark table: columns {sorted(missing)} are missing")
        return foreign_fms.entries(rows)
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}") from None
    if not isinstance(raw, dict) or not {"run_info", "train_info", "meta_info"} <= raw.keys():
        raise RecordError(f"{path}: no peft method_comparison result: it needs run_info, train_info and meta_info")
    return foreign_peft.entries(raw)


def _record(path: Path, fields: dict[str, Any], earlier: Sequence[CaseRecord]) -> CaseRecord:
    """Validate one record; entries with the same id are further launches."""
    fields["case"]["id"] = slug(fields["case"]["id"])
    fields["repeat"] = 1 + sum(record.case.id == fields["case"]["id"] for record in earlier)
    try:
        return CaseRecord.model_validate({"run_id": "import", **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"{path}: {fields['case']['id']}: {where}: {first['msg']}") from None


def slug(name: str) -> str:
    """A name as a case id."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).strip("-.")[:120]


def _merged(values: set[Any]) -> str | None:
    """The one value, or all of them where files of one import disagree."""
    known = sorted(str(value) for value in values if value is not None)
    if len(known) > 1:
        return MIXED + ", ".join(known)
    return known[0] if known else None


def _run(
    sources: Sequence[Path], cases: Sequence[CaseRecord], versions: Mapping[str, str | None], device: str,
    facts: Mapping[str, str], command: Sequence[str],
) -> RunRecord:  # fmt: skip
    started = min(record.started_at for record in cases)
    environment = Environment(
        versions={**versions, **{k: v for k, v in facts.items() if k != "device"}},
        device=facts.get("device", device), device_kind="cuda", devices_per_node=0, device_memory_bytes=None,
        driver=None, topology=None, cpu="unknown", cpu_count=0, host_memory_bytes=0, threads_per_rank=None,
        platform="unknown", commit=None, dirty=None,
    )  # fmt: skip
    names = ", ".join(source.name for source in sources)
    return RunRecord(
        run_id="import", suite="import", suite_text="", headline=None, overrides={}, command=list(command),
        suite_description=f"Imported from {names}. The source says nothing of processor, host memory and devices per "
        "node; zero stands for unknown there.",
        launcher="import", world_size=max(record.world_size for record in cases), hosts=[], hostfile=None,
        planned=list(dict.fromkeys(record.case.id for record in cases)),
        repeats=max(record.repeat for record in cases), started_at=started, finished_at=None, complete=True,
        environment=environment,
    )  # fmt: skip
