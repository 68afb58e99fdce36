"""What can be known to be wrong before any process starts, from local files alone."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from bench.errors import DataError, SpecError
from bench.spec.case import Case
from bench.spec.layout import why_unsupported
from bench.spec.paths import local_path, looks_local

DATA_ENDINGS = (".json", ".jsonl", ".parquet")


def why_not(case: Case, world_size: int) -> str | None:
    """Say why a case cannot run on this many ranks, in one sentence; None where nothing speaks against it.

    Hub names are not looked up: whether they exist shows when the case runs.
    """
    reason = why_unsupported(case, world_size)
    if reason is not None:
        return reason
    try:
        check_model(case)
        check_data(case)
        if case.engine == "deepspeed":
            from bench.spec import ds_config

            ds_config.resolve(case, world_size)
    except (SpecError, DataError) as error:
        return str(error)
    return None


def check_model(case: Case) -> None:
    """Check a local model folder: config, positions, pad token, weights.

    Raises:
        SpecError: in one sentence that names the folder and what is expected.
    """
    folder = local_path(case.model)
    if folder is None:
        if looks_local(case.model):
            hint = ""
            if "smollm2" in case.model.lower():
                hint = "; make it with: python -m bench prepare smollm2"
            raise SpecError(f"model: no folder {case.model!r}{hint}")
        return
    config = _json(folder / "config.json", "model")
    positions = config.get("max_position_embeddings")
    if positions is not None and case.seq_len > case.model_overrides.get("max_position_embeddings", positions):
        raise SpecError(f"seq_len {case.seq_len} exceeds the {positions} positions of {case.model!r}")
    tokenizer = _json(folder / "tokenizer_config.json", "model")
    if not tokenizer.get("pad_token"):
        raise SpecError(f"the tokenizer of {case.model!r} has no pad token; set pad_token in its tokenizer_config.json")
    if case.weights == "pretrained" and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise SpecError(f"model: {folder} holds no weights (*.safetensors); take weights: random to go without")


def check_data(case: Case) -> None:
    """Check a local data file: ending, content, columns of the first rows, enough rows.

    Raises:
        DataError: in one sentence that names the file and what is expected.
    """
    path = local_path(case.data)
    if path is None:
        if looks_local(case.data):
            raise DataError(f"data: no file {case.data!r}")
        return
    if path.suffix not in DATA_ENDINGS:
        raise DataError(f"data: {path} ends in {path.suffix!r}; accepted: {', '.join(DATA_ENDINGS)}")
    rows, count = _peek(path)
    if count == 0:
        raise DataError(f"data: {path} has no rows")
    for number, row in enumerate(rows):
        if not (_is_alpaca(row) or (isinstance(row, dict) and row.get("messages"))):
            columns = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise DataError(
                f"data: {path}: row {number} has {columns}; expected instruction, input and output (Alpaca), "
                "or messages with role and content"
            )
    needed = case.global_batch_size + 2 * case.eval_samples
    if count < needed:
        raise DataError(
            f"data: {path} has {count} rows; one global batch of {case.global_batch_size} and twice "
            f"{case.eval_samples} held-out rows (validation, test) need {needed}"
        )


def _is_alpaca(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str)


def _peek(path: Path, first: int = 20) -> tuple[list[Any], int]:
    """The first rows and the number of rows."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            file = parquet.ParquetFile(path)
            head = next(file.iter_batches(batch_size=first), None)
            return (head.to_pylist() if head else []), file.metadata.num_rows
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            rows = json.loads(text)
            return rows[:first], len(rows)
        lines = [line for line in text.splitlines() if line.strip()]
        return [json.loads(line) for line in islice(lines, first)], len(lines)
    except (ValueError, OSError) as error:
        raise DataError(f"data: {path} cannot be read: {str(error).splitlines()[0]}") from None


def _json(path: Path, key: str) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{key}: {path.parent} has no {path.name}") from None
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{key}: {path} cannot be read: {error}") from None
