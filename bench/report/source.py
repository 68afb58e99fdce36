"""What a report is made of: a results folder with a slot for every planned case and repeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.analysis import derive
from bench.errors import RecordError
from bench.records.folder import case_files, case_folder, read_case, read_run
from bench.records.schema import CaseRecord, RunRecord


@dataclass(frozen=True)
class Slot:
    """One case and repeat that was planned or run."""

    case_id: str
    repeat: int
    record: CaseRecord | None
    """None where the case has no readable `case.json`."""
    problem: str | None = None
    """Why the file that is there cannot be read."""
    numbered: bool = False
    """Whether the run has several repeats, so that labels must tell them apart."""

    @property
    def status(self) -> str:
        """Status of the record, or `not_run` or `unreadable`."""
        if self.record is not None:
            return self.record.status
        return "unreadable" if self.problem else "not_run"

    @property
    def label(self) -> str:
        """Case id, with the repeat where there are several."""
        return f"{self.case_id} #{self.repeat}" if self.numbered else self.case_id


@dataclass(frozen=True)
class Results:
    """A results folder as it was read."""

    folder: Path
    run: RunRecord
    slots: list[Slot]
    """Every planned case and repeat in the suite's order, then what was run without being planned."""

    @property
    def records(self) -> list[CaseRecord]:
        """Records that could be read, in the order of the slots."""
        return [slot.record for slot in self.slots if slot.record is not None]

    def with_value(self, pick: Callable[[CaseRecord], object]) -> list[tuple[Slot, CaseRecord]]:
        """Slots whose record has something: `pick` returns neither None nor an empty value."""
        return [(slot, slot.record) for slot in self.slots if slot.record is not None and pick(slot.record)]

    def file(self, slot: Slot, name: str) -> Path:
        """A file beside a slot's `case.json`; need not exist."""
        return case_folder(self.folder, slot.case_id, slot.repeat) / name

    @property
    def meters(self) -> list[str]:
        """Meters that any case has, the one that tables lead with first."""
        present = [m for m in derive.METERS if any(derive.rank_peaks(r, m) for r in self.records)]
        return present or ["tally" if self.run.environment.device_kind == "cpu" else "allocated"]

    @property
    def case_meters(self) -> list[str]:
        """Meters of tables with one row per case: the device's on an accelerator, else tally and resident set."""
        device = [m for m in self.meters if m in ("allocated", "reserved", "device")]
        return device or self.meters


def load(folder: Path) -> Results:
    """Read a results folder; a `case.json` that is damaged becomes an `unreadable` slot.

    Raises:
        RecordError: the folder has no readable `run.json`.
    """
    run = read_run(folder)
    found: dict[tuple[str, int], tuple[CaseRecord | None, str | None]] = {}
    for path in case_files(folder):
        key = (path.parent.parent.name, _repeat(path.parent.name))
        try:
            found[key] = (read_case(path), None)
        except RecordError as error:
            found[key] = (None, str(error))
    planned = [(case_id, repeat) for case_id in run.planned for repeat in range(1, run.repeats + 1)]
    order = {case_id: i for i, case_id in enumerate(run.planned)}
    keys = sorted({*planned, *found}, key=lambda key: (order.get(key[0], len(order)), key))
    numbered = any(repeat > 1 for _, repeat in keys)
    slots = [Slot(*key, *found.get(key, (None, None)), numbered=numbered) for key in keys]
    return Results(folder, run, slots)


def _repeat(name: str) -> int:
    return int(name[1:]) if name[1:].isdigit() else 1
