"""Memory of every rank: peaks by meter, split at the peak, spread over the ranks."""

from __future__ import annotations

from bench.analysis import derive
from bench.records.schema import CaseRecord, RankRecord
from bench.report.formats import DASH, Notes, size, times
from bench.report.markdown import footnotes, table
from bench.report.reasons import why_meter_missing, why_missing
from bench.report.source import Results, Slot
from bench.report.words import Words

CATEGORIES = (
    "weights", "gradients", "master_weights", "optimizer_state", "activations", "logits", "gathered", "buckets",
    "batch", "temporaries", "other",
)  # fmt: skip
"""Order of `TallyPhase.by_category` in tables and figures."""


def categories(results: Results) -> list[str]:
    """Categories that any rank has at its peak, known ones first in their usual order."""
    splits = [derive.peak_split(rank) for record in results.records for rank in record.ranks]
    used = {name for split in splits if split for name, n_bytes in split[1].items() if n_bytes}
    return [c for c in CATEGORIES if c in used] + sorted(used.difference(CATEGORIES))


def section(results: Results, words: Words) -> str:
    """Spread over the ranks by case, then every rank, and what the meters mean."""
    meaning = "  \n".join(words(f"meter_{meter}") for meter in results.meters)
    parts = [meaning]
    shown = results.with_value(lambda record: record.ranks)
    if shown:
        parts += [_spread(results, words), words("ranks_intro"), _ranks(results, words)]
    else:
        parts.append(words("lack_ranks"))
    return "\n\n".join(parts)


def _spread(results: Results, words: Words) -> str:
    """One row per case: fullest and emptiest rank by the meter that the tables lead with."""
    notes, rows = Notes(), []
    for slot in results.slots:
        meter = derive.main_meter(slot.record) if slot.record else results.meters[0]
        peaks = derive.rank_peaks(slot.record, meter) if slot.record else {}
        if not peaks:
            rows.append([slot.label, *[notes.dash(why_meter_missing(slot, meter, words))] * 5])
            continue
        spread = derive.peak_spread(slot.record, meter)
        rows.append([
            slot.label, words(f"meter_name_{meter}"), size(max(peaks.values())),
            str(derive.fullest_rank(slot.record, meter)), size(min(peaks.values())),
            times(spread) if spread else notes.dash(words("one_rank")),
        ])  # fmt: skip
    names = ("case", "meter", "peak_fullest", "fullest_rank", "peak_emptiest", "spread")
    return f"{table([words(n) for n in names], rows, left=2)}\n\n{footnotes(notes.lines())}".strip()


def _ranks(results: Results, words: Words) -> str:
    """One row per case and rank: every meter, and the split at the highest point of the traced steps."""
    notes, used, rows = Notes(), categories(results), []
    for slot, record in results.with_value(lambda record: record.ranks):
        rows += [_rank_row(results, slot, record, rank, used, words, notes) for rank in record.ranks]
    headers = [
        words("case"), words("rank"), *(words(f"meter_name_{m}") for m in results.meters), words("peak_phase"),
        *(words.get(f"category_{name}", name) for name in used),
    ]  # fmt: skip
    return f"{table(headers, rows)}\n\n{footnotes(notes.lines())}".strip()


def _rank_row(
    results: Results, slot: Slot, record: CaseRecord, rank: RankRecord, used: list[str], words: Words, notes: Notes
) -> list[str]:
    cells = [slot.label, str(rank.rank)]
    for meter in results.meters:
        peak = derive.rank_peaks(record, meter).get(rank.rank)
        cells.append(notes.dash(why_meter_missing(slot, meter, words)) if peak is None else size(peak))
    split = derive.peak_split(rank)
    if split is None:
        return cells + [notes.dash(why_missing(slot, "memory_pass", words))] * (len(used) + 1)
    phase, parts = split
    return [*cells, words.get(f"traced_{phase}", phase), *(size(parts[c]) if c in parts else DASH for c in used)]
