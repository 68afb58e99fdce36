"""One side of a comparison: the launches of one release, from a run's folder, several runs, or one file."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.analysis.launch import Launch, read_launch
from bench.errors import RecordError
from bench.records.folder import read_run
from bench.records.schema import Environment, RunRecord

PARALLEL_FROM = 500
"""Cases from which a second process pays for its start."""


@dataclass
class Release:
    """Everything measured of one release."""

    label: str
    """Short name in tables; unique within a comparison."""
    source: str
    """Path as it was given."""
    environment: Environment | None = None
    """Null for single files without their run's folder."""
    launches: dict[str, list[Launch]] = field(default_factory=dict)
    """Case id → its launches, by repeat."""
    planned: list[str] = field(default_factory=list)
    """Case ids that the runs were to measure, in the suite's order."""
    repeats: int = 1
    """Launches planned for each case."""
    incomplete: str | None = None
    """Why a run is not complete."""
    started_at: str | None = None
    """Start of the first run, ISO 8601."""


def read_releases(paths: Sequence[Path]) -> list[Release]:
    """Read every side of a comparison.

    Args:
        paths: for each side a results folder, a folder of results folders (launches of one release), or one
            `case.json`.

    Returns:
        One release a path, labelled by the shortest unique end of its path.

    Raises:
        RecordError: a path holds no results, a schema version is not known, or the runs of one side were made
            in different environments.
    """
    runs = [_runs(path) for path in paths]
    places = [[str(path)] if path.is_file() else [place for run in found for place in _case_folders(run)]
              for path, found in zip(paths, runs, strict=True)]  # fmt: skip
    launches = iter(_read_all([place for side in places for place in side]))
    labels = _labels(paths)
    releases = [
        _release(label, path, found, [launch for _ in side for launch in next(launches)])
        for label, path, found, side in zip(labels, paths, runs, places, strict=True)
    ]
    for release in releases[1:]:
        _share(release, releases[0])
    return releases


def _share(release: Release, first: Release) -> None:
    """Let equal fields of the same case live once: half of the memory, and the quickest comparison there is."""
    for case, launches in release.launches.items():
        for other in first.launches.get(case, [])[:1]:
            for launch in launches:
                launch.case = other.case if launch.case == other.case else launch.case
                launch.facts = other.facts if launch.facts == other.facts else launch.facts


def _runs(path: Path) -> list[Path]:
    if path.is_file():
        # results/<run>/cases/<case>/r1/case.json
        run = path.resolve().parents[3] if len(path.resolve().parents) > 3 else path.parent
        return [run] if (run / "run.json").is_file() else []
    if (path / "run.json").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("*/run.json"))
    if not found:
        raise RecordError(f"{path} holds no results: neither a run.json, nor folders with one, nor a case.json")
    return found


def _case_folders(run: Path) -> list[str]:
    root = os.path.join(run, "cases")
    return [os.path.join(root, name) for name in sorted(_folders(root))]


def _folders(parent: str) -> list[str]:
    if not os.path.isdir(parent):
        return []
    with os.scandir(parent) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def _read_all(places: list[str]) -> Iterable[list[Launch]]:
    """Launches of each case folder (or single file), in the order given."""
    forks = "fork" in multiprocessing.get_all_start_methods() and (os.cpu_count() or 1) > 1
    if len(places) < PARALLEL_FROM or not forks:
        return map(_read_place, places)
    size = min(250, len(places) // 4)
    chunks = [places[i : i + size] for i in range(0, len(places), size)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        parts = [pool.submit(_read_chunk, chunk) for chunk in chunks]
        importlib.import_module("scipy.stats")  # takes most of a second, meanwhile
        return [launches for part in parts for launches in part.result()]


def _read_chunk(places: list[str]) -> list[list[Launch]]:
    found = [_read_place(place) for place in places]
    # Equal fields of neighbours travel and live once.
    for before, launch in itertools.pairwise(launch for launches in found for launch in launches):
        launch.case = before.case if launch.case == before.case else launch.case
        launch.facts = before.facts if launch.facts == before.facts else launch.facts
    return found


def _read_place(place: str) -> list[Launch]:
    """One file, or the launches of one case: the files of `records.folder.case_files`, by quick plain scans."""
    if not os.path.isdir(place):
        return [read_launch(place)]
    files = [os.path.join(place, name, "case.json") for name in sorted(_folders(place)) if name.startswith("r")]
    return [read_launch(file) for file in files if os.path.exists(file)]


def _release(label: str, path: Path, runs: list[Path], launches: list[Launch]) -> Release:
    release = Release(label, _readable(path))
    records = [read_run(run) for run in runs]
    _describe(release, records, path)
    for launch in launches:
        release.launches.setdefault(launch.case_id, []).append(launch)
    if not launches:
        raise RecordError(f"{path} holds no case.json")
    for same in release.launches.values():
        same.sort(key=lambda launch: (launch.repeat, launch.path))
        if len(runs) > 1:  # several runs of one release: number their launches through
            for number, launch in enumerate(same, 1):
                launch.repeat = number
    return release


def _describe(release: Release, records: list[RunRecord], path: Path) -> None:
    for record in records:
        mixed = differing(records[0].environment, record.environment)
        if mixed:
            raise RecordError(
                f"{path}: its runs were made in different environments ({', '.join(mixed[:5])}); "
                "compare them as two sides"
            )
        if not record.complete:
            release.incomplete = record.interrupted or f"{record.run_id} is not complete"
    if not records:
        return
    release.environment = records[0].environment
    release.started_at = min(record.started_at for record in records)
    if path.is_dir():
        release.planned = list(dict.fromkeys(case for record in records for case in record.planned))
        release.repeats = sum(record.repeats for record in records)


def differing(a: Environment, b: Environment) -> list[str]:
    """Names of the environment's fields whose values differ; entries of mappings by dotted name."""
    left, right = flat(a), flat(b)
    return sorted(key for key in left | right if left.get(key) != right.get(key))


def flat(environment: Environment | None) -> dict[str, str | int | bool | None]:
    """An environment as one mapping: `versions.torch`, `variables.NCCL_ALGO`, `driver` …"""
    if environment is None:
        return {}
    values = environment.model_dump(mode="json")
    nested = {f"{key}.{name}": value for key in ("versions", "variables") for name, value in values.pop(key).items()}
    return {**nested, **values}


def _readable(path: Path) -> str:
    """A path as text that every file can hold: under a C locale its bytes arrive undecoded."""
    return os.fsencode(path).decode("utf-8", "replace")


def _labels(paths: Sequence[Path]) -> list[str]:
    """Last parts of the paths, as many as it takes to tell them apart; numbered where they are the same."""
    parts = [Path(_readable(path.resolve())).parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(p[-depth:]) for p in parts]
        if len(set(labels)) == len(labels):
            return labels
    names = [Path(_readable(path)).name or str(path) for path in paths]
    return [f"{name} #{i}" for i, name in enumerate(names, 1)]
