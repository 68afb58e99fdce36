"""Reading and writing a results folder: atomic writes, strict JSON, versions checked.

results/<run>/run.json
results/<run>/cases/<case>/r<repeat>/case.json, steps.parquet, eval.parquet, ds_config.json, rank<r>.log
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from bench.errors import RecordError
from bench.records.migrations import migrate
from bench.records.schema import CaseRecord, RunRecord

M = TypeVar("M", bound=BaseModel)


def write_atomic(path: Path, data: bytes | str, durable: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Args:
        path: target; its folder must exist.
        data: whole content; text is written as UTF-8.
        durable: have it on the disk before returning; results need this, job files do not.

    Raises:
        OSError: disk full or not writable; the old file is then untouched.
    """
    raw = data.encode() if isinstance(data, str) else data
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def dump_json(value: Any) -> str:
    """Serialise as strict JSON; NaN and infinity raise ValueError instead of writing what no reader takes."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def write_record(path: Path, record: BaseModel) -> None:
    """Write one record atomically; see `write_atomic` for errors."""
    write_atomic(path, dump_json(record.model_dump(mode="json")))


def case_folder(run: Path, case_id: str, repeat: int) -> Path:
    """Folder of one case and repeat within a run's folder."""
    return run / "cases" / case_id / f"r{repeat}"


def read_run(run: Path) -> RunRecord:
    """Read `run.json`; raises RecordError that names the file and what is wrong with it."""
    if not (run / "run.json").is_file():
        raise RecordError(f"{run} is no results folder: it has no run.json")
    return _read(run / "run.json", RunRecord)


def read_case(path: Path) -> CaseRecord:
    """Read one `case.json`; raises RecordError that names the file and what is wrong with it."""
    return _read(path, CaseRecord)


def case_files(run: Path) -> Iterator[Path]:
    """Every `case.json` of a run, sorted by case and repeat."""
    yield from sorted(run.glob("cases/*/r*/case.json"))


def read_cases(run: Path) -> list[CaseRecord]:
    """Every case of a run in the suite's order, then by repeat."""
    records = [read_case(path) for path in case_files(run)]
    order = {case_id: i for i, case_id in enumerate(read_run(run).planned)}
    return sorted(records, key=lambda r: (order.get(r.case.id, len(order)), r.repeat))


def _read(path: Path, model: type[M]) -> M:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not readable as strict JSON: {error}") from None
    try:
        return model.model_validate(migrate(raw, path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"{path}: {where}: {first['msg']}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
