"""Suites: YAML files that expand to validated cases.

A suite has `defaults` (fields of every case), `arms` (fields by tuning method), and either explicit
`cases` or the product of `axes`, less `exclude`, plus `include`. A suite may extend another one and
`override` fields of all its cases.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from bench.errors import SpecError
from bench.spec.case import Case

SUITES = Path(__file__).parent.parent / "suites"
Fields = dict[str, Any]
_ID_PREFIX = {
    "zero_stage": "z", "micro_batch_size": "b", "global_batch_size": "g", "seq_len": "s",
    "lora_rank": "r", "seed": "seed", "tp_size": "tp", "pp_size": "pp", "sp_size": "sp",
}  # fmt: skip


class Headline(BaseModel):
    """The two cases whose comparison opens the report."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    full: str
    lora: str


class SuiteFile(BaseModel):
    """What a suite's YAML may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    description: str
    world_size: PositiveInt | None = None
    headline: Headline | None = None
    extends: str | None = None
    override: Fields = {}
    defaults: Fields = {}
    arms: dict[str, Fields] = {}
    axes: dict[str, list[Any] | dict[str, Fields]] = {}
    exclude: list[Fields] = []
    include: list[Fields] = []
    cases: list[Fields] = []


class Suite(BaseModel):
    """A suite after expansion."""

    model_config = ConfigDict(frozen=True)
    name: str
    """File name without its ending."""
    source: str
    """The file the suite was read from."""
    description: str
    world_size: int | None
    """Ranks the suite was written for; null where any number does."""
    headline: Headline | None
    cases: tuple[Case, ...] = Field(min_length=1)

    def select(self, patterns: str | None) -> Suite:
        """Keep the cases whose id matches one of the comma-separated shell patterns."""
        if patterns is None:
            return self
        globs = [part.strip() for part in patterns.split(",")]
        kept = tuple(c for c in self.cases if any(fnmatch.fnmatchcase(c.id, g) for g in globs))
        if not kept:
            ids = ", ".join(c.id for c in self.cases)
            raise SpecError(f"--cases {patterns!r} matches no case of {self.name}; its cases: {ids}")
        return self.model_copy(update={"cases": kept})


def suite_names() -> list[str]:
    """Names of the suites that come with the project."""
    return sorted(path.stem for path in SUITES.glob("*.yaml"))


def load_suite(name_or_file: str, override: Mapping[str, Any] | None = None) -> Suite:
    """Read, expand and validate a suite.

    Args:
        name_or_file: name of a suite of the project, or path of a YAML file.
        override: fields to replace in every case, on top of the file's own `override`.

    Raises:
        SpecError: naming the file, the key, its value and what is accepted.
    """
    path = _find(name_or_file)
    file, cases = _read(path, ())
    fields = [_apply(case, override or {}) for case in cases]
    suite = Suite(
        name=path.stem, source=str(path), description=file.description.strip(),
        world_size=file.world_size, headline=file.headline,
        cases=tuple(_case(path, fields_of_case) for fields_of_case in fields),
    )  # fmt: skip
    _check_ids(suite)
    return suite


def parse_override(pairs: Sequence[str]) -> Fields:
    """Turn `--set field=value` arguments into fields; values are YAML."""
    fields: Fields = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise SpecError(f"--set {pair!r}: expected FIELD=VALUE, e.g. --set steps=20")
        try:
            fields[key.strip()] = YAML(typ="safe").load(text)
        except YAMLError as error:
            raise SpecError(f"--set {pair!r}: the value is not YAML: {_first_line(error)}") from None
    return fields


def _find(name_or_file: str) -> Path:
    known = SUITES / f"{name_or_file}.yaml"
    path = Path(name_or_file)
    if known.is_file() and path.suffix not in (".yaml", ".yml"):
        return known
    if path.is_file():
        return path
    raise SpecError(f"suite {name_or_file!r} is neither a file nor one of: {', '.join(suite_names())}")


def _read(path: Path, seen: tuple[Path, ...]) -> tuple[SuiteFile, list[Fields]]:
    """Read one file and expand it to the fields of its cases, base suites first."""
    if path in seen:
        raise SpecError(f"{path}: extends: the suites extend each other in a circle")
    try:
        raw = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not valid YAML: {_first_line(error)}") from None
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: expected a mapping with the keys {', '.join(SuiteFile.model_fields)}")
    try:
        file = SuiteFile.model_validate(raw)
    except ValidationError as error:
        raise SpecError(f"{path}: {explain(error, SuiteFile)}") from None
    cases: list[Fields] = []
    if file.extends:
        base, cases = _read(_find(file.extends), (*seen, path))
        inherited = {"headline": file.headline or base.headline, "world_size": file.world_size or base.world_size}
        file = file.model_copy(update=inherited)
    cases = cases + _expand(path, file)
    if not cases:
        raise SpecError(f"{path}: no case: give cases, axes or extends")
    return file, [_apply(case, file.override) for case in cases]


def _expand(path: Path, file: SuiteFile) -> list[Fields]:
    """Axes × defaults, less `exclude`, plus `include` and `cases`; each completed with its arm."""
    if (file.exclude or file.include) and not file.axes:
        raise SpecError(f"{path}: exclude and include need axes; list plain cases under cases")
    unknown = set(file.arms) - {"full", "lora"}
    if unknown:
        raise SpecError(f"{path}: arms: {sorted(unknown)[0]!r} is no tuning method; accepted: full, lora")
    points = [p for p in _product(path, file.axes) if not any(_matches(p, x, file) for x in file.exclude)]
    return [_complete(point, file) for point in points + file.include + file.cases]


def _product(path: Path, axes: Mapping[str, Any]) -> list[Fields]:
    """The product of the axes; an axis is a field with values, or a name with labelled fields."""
    if not axes:
        return []
    choices: list[list[tuple[str, Fields]]] = []
    for axis, values in axes.items():
        if not values:
            raise SpecError(f"{path}: axes: {axis} is empty; give at least one value")
        if isinstance(values, dict):
            choices.append([(str(label), fields) for label, fields in values.items()])
        else:
            choices.append([(_label(axis, value), {axis: value}) for value in values])
    points = []
    for combination in itertools.product(*choices):
        point: Fields = {"id": "-".join(label for label, _ in combination if label)}
        for _, fields in combination:
            point.update(fields)
        points.append(point)
    return points


def _label(axis: str, value: Any) -> str:
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{_ID_PREFIX.get(axis, '')}{text.rsplit('/', 1)[-1]}".replace(" ", "_")


def _complete(point: Fields, file: SuiteFile) -> Fields:
    tuning = point.get("tuning", file.defaults.get("tuning"))
    fields = {**file.defaults, **file.arms.get(str(tuning), {}), **point}
    if fields.get("engine") == "ddp" and "zero_stage" not in point:
        fields["zero_stage"] = None
    return fields


def _matches(point: Fields, pattern: Fields, file: SuiteFile) -> bool:
    fields = _complete(point, file)
    return all(fields.get(key) == value for key, value in pattern.items())


def _apply(fields: Fields, override: Mapping[str, Any]) -> Fields:
    """Replace fields; a dotted key reaches into a mapping (`model_overrides.hidden_size`)."""
    result = dict(fields)
    for key, value in override.items():
        head, dot, rest = key.partition(".")
        result[head] = {**result.get(head, {}), rest: value} if dot else value
    return result


def _case(path: Path, fields: Fields) -> Case:
    label = fields.get("id") or "a case without id"
    try:
        return Case.model_validate(fields)
    except ValidationError as error:
        raise SpecError(f"{path}: case {label!r}: {explain(error, Case)}") from None


def _check_ids(suite: Suite) -> None:
    """Ids are unique, no two cases are the same work, and the headline names existing cases."""
    seen: dict[str, str] = {}
    for case in suite.cases:
        work = case.model_copy(update={"id": ""}).model_dump_json()
        if case.id in seen.values():
            raise SpecError(f"{suite.source}: two cases have the id {case.id!r}; ids must be unique")
        if work in seen:
            raise SpecError(
                f"{suite.source}: cases {seen[work]!r} and {case.id!r} are the same; exclude one "
                "(fields of LoRA do not count under full fine-tuning)"
            )
        seen[work] = case.id
    for arm in ("full", "lora") if suite.headline else ():
        case_id = getattr(suite.headline, arm)
        match = [case for case in suite.cases if case.id == case_id]
        if not match or match[0].tuning != arm:
            raise SpecError(f"{suite.source}: headline.{arm}: {case_id!r} is no {arm} case of the suite")


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Say in one sentence what is wrong: key, value and what is accepted."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, model.model_fields, 1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(model.model_fields)}"
        return f"unknown key {key!r}; {hint}"
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    message = first["msg"].replace("Input should be", "accepted:")
    return f"{key}: {first['input']!r} is not accepted; {message}"


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1})" if mark else ""
    return f"{getattr(error, 'problem', None) or str(error).splitlines()[0]}{where}"
