"""A document's claims as structured rows. Nothing but these fields decides a verdict."""

from __future__ import annotations

import ast
import csv
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import SpecError

CLAIMS = Path(__file__).parent / "claims.csv"
"""The claims of the two reports behind this project."""
_NUMBERS = ("value", "value_high")
_COUNTS = ("gpus", "micro_batch", "seq_len", "zero_stage", "tp", "pp", "lora_rank", "other_rank", "other_seq_len",
           "other_micro_batch")  # fmt: skip
_WORDS = ("unit", "relation", "expression", "meter", "model", "gpu", "tuning", "precision", "optimizer", "masters",
          "gradient_checkpointing", "attention", "target_modules", "aspect")  # fmt: skip
COLUMNS = ("id", "document", "quantity", *_NUMBERS, *_COUNTS, *_WORDS, "statement_en", "statement_zh")
UNITS = {"GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "MiB": 2.0**20, "B": 1e9, "M": 1e6, "%": 1.0, "x": 1.0, "": 1.0,
         "samples/s": 1.0, "GPU": 1.0}  # fmt: skip
"""Factor to bytes, counts or plain numbers; B and M are billions and millions of parameters."""
RELATIONS = ("=", "<=", ">=")


@dataclass(frozen=True)
class Claim:
    """One number (or interval) that a document states, with the configuration it is about."""

    id: str
    document: str
    quantity: str
    """A key of `bench.planner.references.QUANTITIES`."""
    low: float | None
    """In bytes, counts or plain numbers; None where the document states no number."""
    high: float | None
    unit: str
    relation: str
    """`=`, or a bound: `<=` at most, `>=` at least."""
    expression: str
    """The document's own arithmetic for the value, in the claim's unit; or a comparison it implies."""
    fields: dict[str, Any]
    """Configuration; absent fields are those the document leaves open."""
    statement: dict[str, str]
    """What is claimed, by language."""

    @property
    def stated(self) -> str:
        """The value as stated, with its unit."""
        if self.low is None:
            return "—"
        scale = UNITS[self.unit]
        numbers = [f"{bound / scale:g}" for bound in dict.fromkeys((self.low, self.high))]
        sign = "" if self.relation == "=" else f"{self.relation} "
        return f"{sign}{'–'.join(numbers)} {self.unit}".strip()


def read_claims(path: Path) -> list[Claim]:
    """Read a CSV of claims.

    Raises:
        SpecError: naming file, row, column and what is accepted.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {error}") from None
    missing = [name for name in ("id", "quantity", "value", "unit") if name not in (reader.fieldnames or ())]
    if missing:
        raise SpecError(
            f"{path}: column {missing[0]} is missing; an audit reads structured claims with the columns "
            f"{', '.join(COLUMNS)}"
        )
    return [_claim(path, number, row) for number, row in enumerate(rows, 2)]


def _claim(path: Path, line: int, row: dict[str, str]) -> Claim:
    where = f"{path}: line {line} ({row.get('id')})"
    numbers = {name: _number(where, name, row.get(name) or "") for name in (*_NUMBERS, *_COUNTS)}
    unit, relation = row.get("unit") or "", row.get("relation") or "="
    if unit not in UNITS:
        raise SpecError(f"{where}: unit {unit!r}; accepted: {', '.join(filter(None, UNITS))}")
    if relation not in RELATIONS:
        raise SpecError(f"{where}: relation {relation!r}; accepted: {', '.join(RELATIONS)}")
    low = numbers["value"]
    high = numbers["value_high"] if numbers["value_high"] is not None else low
    fields: dict[str, Any] = {name: int(numbers[name]) for name in _COUNTS if numbers[name] is not None}
    words = ("model", "gpu", "tuning", "precision", "optimizer", "masters", "gradient_checkpointing", "attention",
             "target_modules", "aspect", "meter")  # fmt: skip
    fields |= {name: row[name] for name in words if row.get(name)}
    return Claim(
        id=row["id"], document=row.get("document") or "", quantity=row["quantity"],
        low=None if low is None else low * UNITS[unit], high=None if high is None else high * UNITS[unit],
        unit=unit, relation=relation, expression=row.get("expression") or "", fields=fields,
        statement={"en": row.get("statement_en") or "", "zh": row.get("statement_zh") or ""},
    )  # fmt: skip


def _number(where: str, column: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"{where}: {column} {text!r} is no number") from None


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.Lt: operator.lt, ast.Gt: operator.gt,
}  # fmt: skip


def evaluate(expression: str) -> float | bool:
    """Work out plain arithmetic (+ − × ÷ power), or one comparison of two such terms.

    Raises:
        SpecError: anything else is in it.
    """
    try:
        return _evaluate(ast.parse(expression, mode="eval").body)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError):
        raise SpecError(f"expression {expression!r}: only numbers, + - * / **, one < or > are understood") from None


def _evaluate(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS[type(node.ops[0])](_evaluate(node.left), _evaluate(node.comparators[0]))
    raise TypeError
