"""The table that people put into documents: full fine-tuning against LoRA."""

from __future__ import annotations

from dataclasses import dataclass

from bench.analysis import derive
from bench.analysis.derive import QUANTITIES, Quantity
from bench.records.schema import CaseRecord
from bench.report.formats import Notes, mean_and_range, points, share, times
from bench.report.markdown import code, footnotes, table
from bench.report.reasons import outcome, status_text, why_quantity_missing
from bench.report.source import Results, Slot
from bench.report.words import Words

ARMS = ("full", "lora")
_ARROWS = {"higher": " ↑", "lower": " ↓", None: ""}
_AFTER_MEMORY = (
    "trainable_parameters", "samples_per_s", "tokens_per_s", "step_s", "exact_match", "token_accuracy", "eval_loss",
    "base_exact_match", "base_token_accuracy", "base_eval_loss", "checkpoint_bytes", "native_checkpoint_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One column: the launches of a headline case, its repeats and the cases that differ only in seed."""

    name: str
    slots: list[Slot]
    """The first one gives the column its name and, where none is ok, its status."""

    @property
    def ok(self) -> list[CaseRecord]:
        """Launches that succeeded."""
        return [slot.record for slot in self.slots if slot.record and slot.status == "ok"]

    def values(self, quantity: Quantity) -> list[float]:
        """The quantity of every launch that has it."""
        values = [quantity.value(record) for record in self.ok]
        return [value for value in values if value is not None]


def pick(results: Results) -> tuple[dict[str, Arm | None], bool]:
    """Choose the two columns.

    Returns:
        Arms by name, None where the run has no case of it; and whether the suite named them.
    """
    named = results.run.headline or {}
    by_id = {slot.case_id: slot for slot in reversed(results.slots)}
    if set(named) == set(ARMS) and all(named[arm] in by_id for arm in ARMS):
        return {arm: _arm(results, arm, by_id[named[arm]]) for arm in ARMS}, True
    chosen = _first_pair(results)
    return {arm: _arm(results, arm, chosen[arm]) if chosen[arm] else None for arm in ARMS}, False


def _first_pair(results: Results) -> dict[str, Slot | None]:
    """The first ok pair that differs in the method alone, else the first ok ones, else the first ones."""
    of = {arm: [s for s in results.slots if s.record and s.record.case.tuning == arm] for arm in ARMS}
    ok = {arm: [s for s in of[arm] if s.status == "ok"] for arm in ARMS}
    for full in ok["full"]:
        for lora in ok["lora"]:
            if not derive.differing_fields(full.record.case, lora.record.case):
                return {"full": full, "lora": lora}
    return {arm: next(iter(ok[arm] or of[arm]), None) for arm in ARMS}


def _arm(results: Results, name: str, first: Slot) -> Arm:
    def launch(slot: Slot) -> bool:
        if slot.case_id == first.case_id:
            return True
        return bool(slot.record and first.record and derive.same_but_seed(slot.record.case, first.record.case))

    others = [slot for slot in results.slots if slot != first and launch(slot)]
    return Arm(name, [first, *others])


def section(results: Results, words: Words) -> str:
    """The headline table with what a reader must know to trust it."""
    arms, named = pick(results)
    notes = Notes()
    meters = [f"peak_{meter}_bytes" for meter in results.case_meters]
    rows = [_row(arms, QUANTITIES[name], words, notes) for name in (*meters, *_AFTER_MEMORY)]
    headers = [words("metric"), words("full"), words("lora"), words("ratio_column")]
    lines = _preamble(arms, named, words)
    parts = ["  \n".join(lines), table(headers, rows), footnotes(notes.lines()), words("headline_legend")]
    return "\n\n".join(part for part in parts if part)


def _preamble(arms: dict[str, Arm | None], named: bool, words: Words) -> list[str]:
    """Which cases the columns show, how many launches, and in what else they differ."""
    lines = [words("headline_named" if named else "headline_chosen")]
    for name in ARMS:
        arm = arms[name]
        lines.append(f"{words(name)}: {_describe(arm, words) if arm else words('no_case_of_arm')}")
    cases = [arm.slots[0].record.case for arm in arms.values() if arm and arm.slots[0].record]
    different = derive.differing_fields(*cases) if len(cases) == 2 else []
    if different:
        shown = ", ".join(f"{f} ({getattr(cases[0], f)} / {getattr(cases[1], f)})" for f in different)
        lines.append(words("headline_differ", fields=code(shown)))
    return lines


def _describe(arm: Arm, words: Words) -> str:
    first = arm.slots[0]
    if len(arm.slots) == 1:
        return f"{code(first.case_id)} ({words('one_launch')}, {status_text(first, words)})"
    seeds = sorted({slot.record.case.seed for slot in arm.slots if slot.record})
    text = words("launches", n=len(arm.slots), ok=len(arm.ok), seeds=", ".join(map(str, seeds)) or words("unknown"))
    failed = [f"{slot.label}: {status_text(slot, words)}" for slot in arm.slots if slot.status != "ok"]
    return f"{code(first.case_id)} ({text}" + (f"; {code(', '.join(failed))})" if failed else ")")


def _row(arms: dict[str, Arm | None], quantity: Quantity, words: Words, notes: Notes) -> list[str]:
    name = words(quantity.name) + _ARROWS[quantity.better]
    cells = [_cell(arms[arm], quantity, words, notes) for arm in ARMS]
    return [name, *cells, _ratio(arms, quantity, words)]


def _cell(arm: Arm | None, quantity: Quantity, words: Words, notes: Notes) -> str:
    if arm is None:
        return words("status_not_run")
    if not arm.ok:
        return status_text(arm.slots[0], words) + notes.mark(outcome(arm.slots[0], words))
    values = arm.values(quantity)
    if not values:
        first_ok = next(slot for slot in arm.slots if slot.status == "ok")
        return notes.dash(why_quantity_missing(first_ok, quantity, words))
    shown = mean_and_range(quantity, values)
    if quantity.name == "trainable_parameters":
        shares = arm.values(QUANTITIES["trainable_share"])
        return f"{shown} ({share(shares[0])})" if shares else shown
    moment = {"exact_match": "after", "base_exact_match": "before"}.get(quantity.name)
    if moment and len(set(values)) == 1:
        interval = next(filter(None, (derive.exact_match_interval(r.evaluation.get(moment)) for r in arm.ok)))
        return f"{shown} ({share(interval[0])}–{share(interval[1])})"
    return shown


def _ratio(arms: dict[str, Arm | None], quantity: Quantity, words: Words) -> str:
    """LoRA over full, with the difference in points for accuracies; or which side is missing and why."""
    means: dict[str, float] = {}
    gaps = []
    for name in ARMS:
        arm = arms[name]
        values = arm.values(quantity) if arm else []
        if values:
            means[name] = sum(values) / len(values)
        else:
            gaps.append(f"{words(name)}: {_gap(arm, words)}")
    if gaps:
        return "; ".join(gaps)
    ratio = times(means["lora"] / means["full"]) if means["full"] else words("full_is_zero")
    if quantity.unit != "share":
        return ratio
    return f"{ratio} ({points(means['lora'] - means['full'])} {words('points')})"


def _gap(arm: Arm | None, words: Words) -> str:
    if arm is None:
        return words("status_not_run")
    return words("no_value") if arm.ok else status_text(arm.slots[0], words)
