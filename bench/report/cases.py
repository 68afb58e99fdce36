"""Tables with one row per case: speed and accuracy, phases, checkpoints."""

from __future__ import annotations

from bench.analysis import derive
from bench.analysis.derive import QUANTITIES
from bench.records.schema import CaseRecord
from bench.report.formats import DASH, Notes, duration, number, share, size
from bench.report.markdown import footnotes, table
from bench.report.reasons import quantity_cell, status_text, why_missing
from bench.report.source import Results, Slot
from bench.report.words import Words


def all_cases(results: Results, words: Words) -> str:
    """Every planned case and repeat, whatever became of it."""
    notes = Notes()
    meters = [QUANTITIES[f"peak_{meter}_bytes"] for meter in results.case_meters]
    headers = [
        words("case"), words("status"), words("tuning"), words("strategy"), words("batch"), words("seq_len"),
        words("precision"), words("samples_per_s"), words("tokens_per_s"), words("step_s"),
        *(words(q.name) for q in meters), words("exact_match_interval"), words("eval_loss"),
        words("checkpoint_bytes"), words("outside_steps_s"),
    ]  # fmt: skip
    rows = []
    for slot in results.slots:
        speed = [quantity_cell(slot, QUANTITIES[n], words, notes) for n in ("samples_per_s", "tokens_per_s", "step_s")]
        peaks = [quantity_cell(slot, q, words, notes) for q in meters]
        rest = [
            quantity_cell(slot, QUANTITIES[n], words, notes)
            for n in ("eval_loss", "checkpoint_bytes", "outside_steps_s")
        ]
        status = status_text(slot, words)
        rows.append([slot.label, status, *_identity(slot), *speed, *peaks, _exact(slot, words, notes), *rest])
    parts = [table(headers, rows, left=4), footnotes(notes.lines()), words("cases_legend")]
    return "\n\n".join(part for part in parts if part)


def _identity(slot: Slot) -> list[str]:
    """Tuning, strategy, batch, sequence and precision; dashes where the case was never written down."""
    if slot.record is None:
        return [DASH] * 5
    case, mesh = slot.record.case, slot.record.mesh
    tuning = f"LoRA r={case.lora_rank}" if case.tuning == "lora" else "full"
    batch = str(case.global_batch_size)
    if mesh and slot.record.accumulation_steps:
        batch = f"{case.micro_batch_size} × {slot.record.accumulation_steps} × {mesh.get('dp', 1)} = {batch}"
    return [tuning, case.strategy, batch, str(case.seq_len), case.precision]


def _exact(slot: Slot, words: Words, notes: Notes) -> str:
    cell = quantity_cell(slot, QUANTITIES["exact_match"], words, notes)
    interval = derive.exact_match_interval(slot.record.evaluation.get("after")) if slot.record else None
    return f"{cell} ({share(interval[0])}–{share(interval[1])})" if interval else cell


def phases(results: Results, words: Words) -> str:
    """Where the time of a case goes: seconds of the slowest rank in each phase."""
    names = list(dict.fromkeys(name for record in results.records for name in record.phases_s))
    if not names:
        return words("no_phases")
    notes, rows = Notes(), []
    for slot in results.slots:
        spent = slot.record.phases_s if slot.record else {}
        lack = DASH if spent else notes.dash(why_missing(slot, "phases_s", words))
        wall = f"{slot.record.wall_s:.1f}" if slot.record else lack
        rows.append([slot.label, *(f"{spent[name]:.2f}" if name in spent else lack for name in names), wall])
    headers = [words("case"), *(words.get(f"phase_{name}", name) for name in names), words("wall_s")]
    parts = [words("phases_intro"), table(headers, rows), footnotes(notes.lines()), _window(results, words)]
    return "\n\n".join(part for part in parts if part)


def _window(results: Results, words: Words) -> str:
    """How much of the timed window is not training."""
    notes = Notes()
    names = ("data_wait_share", "loop_share", "padding_share")
    rows = []
    for slot, record in results.with_value(lambda record: record.timed):
        window = f"{number(record.timed.window_s)} s / {record.timed.steps}"
        rows.append([slot.label, window, *(quantity_cell(slot, QUANTITIES[n], words, notes) for n in names)])
    headers = [words("case"), words("window_steps"), *(words(name) for name in names)]
    return f"{table(headers, rows)}\n\n{footnotes(notes.lines())}".strip() if rows else ""


def checkpoints(results: Results, words: Words) -> str:
    """Bytes by role, seconds, and whether the export loads in a fresh process."""
    notes = Notes()
    shown = [slot for slot in results.slots if slot.record and (slot.status == "ok" or slot.record.checkpoint)]
    roles = list(dict.fromkeys(role for s in shown if s.record.checkpoint for role in s.record.checkpoint.native_bytes))
    headers = [
        words("case"), words("checkpoint_bytes"), *(f"{words('native')}: {words.get(f'role_{r}', r)}" for r in roles),
        words("export_s"), words("save_s"), words("load_s"), words("verified"),
    ]  # fmt: skip
    rows = [_checkpoint_row(slot, slot.record, roles, words, notes) for slot in shown]
    if not rows:
        return words("no_checkpoints")
    return f"{table(headers, rows)}\n\n{footnotes(notes.lines())}".strip()


def _checkpoint_row(slot: Slot, record: CaseRecord, roles: list[str], words: Words, notes: Notes) -> list[str]:
    facts = record.checkpoint
    if facts is None:
        dash = notes.dash(why_missing(slot, "checkpoint", words))
        return [slot.label, *[dash] * (len(roles) + 5)]
    native = [size(facts.native_bytes[role]) if role in facts.native_bytes else DASH for role in roles]
    load = duration(facts.load_s) if facts.load_s is not None else notes.dash(why_missing(slot, "checkpoint", words))
    proof = words({True: "yes", False: "no", None: "not_tried"}[facts.verified])
    proof += notes.mark(facts.reason) if facts.reason else ""
    losses = (facts.reload_loss, facts.trained_loss)
    if None not in losses:
        proof += f" ({losses[0]:.4f} / {losses[1]:.4f})"
    return [
        slot.label,
        size(facts.export_bytes),
        *native,
        duration(facts.export_s),
        duration(facts.save_s),
        load,
        proof,
    ]
