"""Why a number is not there."""

from __future__ import annotations

from bench.analysis.derive import Quantity
from bench.records.schema import CaseRecord
from bench.report.formats import Notes, text
from bench.report.source import Slot
from bench.report.words import Words


def status_text(slot: Slot, words: Words) -> str:
    """Status in the report's language."""
    return words(f"status_{slot.status}")


def outcome(slot: Slot, words: Words) -> str:
    """Status with its reason in one sentence."""
    reason = slot.problem or (slot.record.reason if slot.record else None)
    return f"{status_text(slot, words)}: {reason}" if reason else status_text(slot, words)


def why_missing(slot: Slot, field: str, words: Words) -> str:
    """Say why a field of a case is empty, as the record says it or else by what is not there.

    Args:
        slot: the case.
        field: as in `Quantity.field`; `memory_pass` for the traced steps.
        words: language.
    """
    record = slot.record
    if record is None or record.status != "ok":
        return outcome(slot, words)
    stated = _stated(record, field)
    if stated:
        return stated
    key = f"lack_{field.split('.')[0]}"
    return words(key) if key in words else words("lack_other")


def _stated(record: CaseRecord, field: str) -> str | None:
    root = field.split(".")[0]
    for name, reason in record.missing.items():
        if name in (field, root) or (field == "memory_pass" and "memory_pass" in name):
            return reason
    if field == "memory_pass":
        passes = [rank.memory_pass for rank in record.ranks if rank.memory_pass]
        return next((f"{p.status}: {p.reason}" for p in passes if p.reason), None)
    if field == "checkpoint" and record.checkpoint:
        return record.checkpoint.reason
    return None


def quantity_cell(slot: Slot, quantity: Quantity, words: Words, notes: Notes) -> str:
    """A quantity of a case as text, or a dash that points to its reason."""
    value = quantity.value(slot.record) if slot.record else None
    if value is not None:
        return text(quantity, value)
    return notes.dash(why_quantity_missing(slot, quantity, words))


def why_quantity_missing(slot: Slot, quantity: Quantity, words: Words) -> str:
    """Say why a quantity of a case cannot be computed."""
    if quantity.field == "ranks" and quantity.unit == "bytes":
        name = quantity.name.removeprefix("peak_").removesuffix("_bytes")
        return why_meter_missing(slot, "tally" if name == "peak" else name, words)
    return why_missing(slot, quantity.field, words)


def why_meter_missing(slot: Slot, meter: str, words: Words) -> str:
    """Say why a case has no peak by a meter: no rank left a record, or the ranks that did lack it."""
    if not slot.record or not slot.record.ranks:
        return why_missing(slot, "ranks", words)
    return why_missing(slot, "memory_pass" if meter == "tally" else "meter", words)
