"""Predicted beside measured: peak memory, fit and samples/s of every case."""

from __future__ import annotations

from bench.analysis import derive, predicted
from bench.analysis.derive import QUANTITIES
from bench.records.schema import CaseRecord
from bench.report.formats import DASH, Notes, number, points, size
from bench.report.markdown import footnotes, inline, table
from bench.report.reasons import outcome, quantity_cell, status_text, why_meter_missing
from bench.report.source import Results, Slot
from bench.report.words import Words

_LARGE_ERROR = 0.05
"""Beyond this the component that differs most is named."""


def section(results: Results, words: Words) -> str:
    """Peaks of every case, then fit and rate where a device was known."""
    return "\n\n".join([words("plan_intro"), _memory(results, words), _speed(results, words)])


def _memory(results: Results, words: Words) -> str:
    """One row per case and meter."""
    notes, rows = Notes(), []
    for slot in results.slots:
        meters = predicted.compared_meters(slot.record) if slot.record else results.meters[:1]
        rows += [_memory_row(slot, meter, words, notes) for meter in meters]
    names = ("case", "meter", "planned_peak", "measured_peak", "plan_error", "differs_most")
    return f"{table([words(n) for n in names], rows, left=2)}\n\n{footnotes(notes.lines())}".strip()


def _memory_row(slot: Slot, meter: str, words: Words, notes: Notes) -> list[str]:
    record, name = slot.record, words(f"meter_name_{meter}")
    measured = derive.peak_bytes(record, meter) if record else None
    found = size(measured) if measured is not None else notes.dash(why_meter_missing(slot, meter, words))
    wanted = predicted.planned_peak_bytes(record, meter) if record else None
    if record is None or wanted is None:
        return [slot.label, name, notes.dash(_why_unplanned(slot, "plan.meters", words)), found, DASH, DASH]
    text = size(wanted)
    if record.plan.meters and meter in record.plan.meters:
        bounds = record.plan.meters[meter]
        text += f" ({size(bounds.low)}–{size(bounds.high)})"
    text = _caveated(f"≤ {text}" if predicted.is_bound(record) else text, record, "plan_upper_bound", words, notes)
    error = predicted.peak_error(record, meter)
    if error is None:
        return [slot.label, name, text, found, DASH, DASH]
    return [slot.label, name, text, found, _percent(error), _component(slot, record, meter, error, words, notes)]


def _component(slot: Slot, record: CaseRecord, meter: str, error: float, words: Words, notes: Notes) -> str:
    """The component that differs most, predicted / measured, where the error asks for an explanation."""
    if abs(error) <= _LARGE_ERROR:
        return words("plan_close")
    if meter == "device":
        return notes.dash(words("device_not_split"))
    found = predicted.largest_difference(record)
    if found is None:
        offloaded = record.plan.host_bytes and meter == "tally"
        return notes.dash(words("host_not_split") if offloaded else why_meter_missing(slot, "tally", words))
    label = words.get(f"category_{found.category}", found.category)
    text = f"{label}: {size(found.planned_bytes)} / {size(found.measured_bytes)}"
    if found.planned_phase != found.measured_phase:
        phases = (words.get(f"traced_{name}", name) for name in (found.planned_phase, found.measured_phase))
        text += f" ({' / '.join(phases)})"
    if found.planned_stage != found.measured_stage:
        text += notes.mark(words("other_stage", planned=found.planned_stage, measured=found.measured_stage))
    return text


def _speed(results: Results, words: Words) -> str:
    """One row per case, or why no case that left a record has such a prediction."""
    if not any(record.plan and record.plan.gpu for record in results.records):
        slots = [slot for slot in results.slots if slot.record] or results.slots
        reasons = dict.fromkeys(_why_unplanned(slot, "plan.samples_per_s", words) for slot in slots)
        return words("no_planned_speed", reason="; ".join(inline(reason) for reason in reasons))
    notes = Notes()
    rows = [_speed_row(slot, words, notes) for slot in results.slots]
    names = ("case", "status", "planned_fit", "planned_speed", "samples_per_s", "plan_error")
    return f"{table([words(n) for n in names], rows, left=3)}\n\n{footnotes(notes.lines())}".strip()


def _speed_row(slot: Slot, words: Words, notes: Notes) -> list[str]:
    plan = slot.record.plan if slot.record else None
    measured = quantity_cell(slot, QUANTITIES["samples_per_s"], words, notes)
    fit = notes.dash(_why_unplanned(slot, "plan.fits", words))
    if plan and plan.fits is not None:
        fit = words("yes") if plan.fits else words("planned_lack", lack=size(plan.shortfall_bytes or 0))
    rate, error = notes.dash(_why_unplanned(slot, "plan.samples_per_s", words)), None
    if plan and plan.samples_per_s is not None:
        rate = f"{number(plan.samples_per_s)} ± {100 * (plan.speed_uncertainty or 0):.0f} %"
        error = predicted.speed_error(slot.record)
        bounded = f"≥ {rate}" if predicted.is_bound(slot.record) else rate
        rate = _caveated(bounded, slot.record, "plan_lower_bound", words, notes)
    return [slot.label, status_text(slot, words), fit, rate, measured, DASH if error is None else _percent(error)]


def _caveated(text: str, record: CaseRecord, bound: str, words: Words, notes: Notes) -> str:
    """A prediction with one footnote: what kind of bound it is, by which lengths, and whether it is extrapolated."""
    caveats, data = [], record.data
    if predicted.is_bound(record):
        seen = words("plan_lengths", mean=f"{data.length_mean:.1f}", longest=data.length_max) if data else ""
        caveats.append(words(bound, seq_len=record.case.seq_len) + seen)
    if record.plan and record.plan.extrapolated:
        caveats.append(words("plan_extrapolated", what=record.plan.extrapolated))
    return text + (notes.mark("; ".join(caveats)) if caveats else "")


def _why_unplanned(slot: Slot, field: str, words: Words) -> str:
    """Why a part of the prediction is not there, as the record says it."""
    if slot.record is None:
        return outcome(slot, words)
    return slot.record.missing.get(field) or slot.record.missing.get("plan") or words("lack_plan")


def _percent(share: float) -> str:
    return f"{points(share)} %"
