"""A comparison as one Markdown text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.analysis.attribution import ALL, PhaseChange, Split, phases, splits
from bench.analysis.metrics import METRICS
from bench.analysis.trend import Line, Trend
from bench.analysis.verdict import STATUS, VERDICTS, Comparison, Row, SetRow
from bench.report import compare_cells as cells
from bench.report.compare_rules import rules
from bench.report.compare_words import CompareWords
from bench.report.formats import DASH, share, size
from bench.report.markdown import bullets, image, inline, table

LISTED = 50
"""Rows of a table; the rest is in `compare.csv`."""


@dataclass(frozen=True)
class Outcome:
    """Everything that a comparison's report shows."""

    comparison: Comparison
    trends: list[Trend]
    code: int
    """Exit code."""

    @cached_property
    def splits(self) -> list[Split]:
        """Changes by their parts."""
        return splits(self.comparison)

    @cached_property
    def phases(self) -> list[PhaseChange]:
        """Phases of the cases whose time regressed, or else of all."""
        rows = [row for row in self.comparison.rows if row.verdict == "regressed"]
        timed = sorted({row.case for row in rows if METRICS[row.metric].scope == "time"})
        return phases(self.comparison, timed or None)


def render(outcome: Outcome, words: CompareWords, figures: Mapping[str, str]) -> str:
    """Write the whole comparison in one language.

    Args:
        outcome: what was found.
        words: the language.
        figures: path relative to the text by figure name.
    """
    comparison, rows = outcome.comparison, outcome.comparison.rows
    worse = by_harm([row for row in rows if row.fails])
    better = by_harm([row for row in rows if row.verdict in ("improved", "newly passing")])
    undecided = by_harm([row for row in rows if row.verdict == "inconclusive"])
    barred = [r for r in rows if r.verdict in ("not comparable", "both failing", "missing") and not r.fails]
    title = words("title", baseline=comparison.baseline.label, candidate=comparison.candidate.label)
    body = [
        f"# {inline(title)}", headline(outcome, words), *_remarks(comparison, words),
        f"## {words('h_summary')}", summary(comparison, words), *_pictures(figures, "ratio", words),
        f"## {words('h_environment')}", _environment(comparison, words),
        f"## {words('h_worse')}", _listing(worse, words),
        *_where(outcome, words),
        *_optional("h_open", undecided, words), *_optional("h_better", better, words),
        *_barred(barred, words),
        f"## {words('h_rest')}", words("unchanged_count", n=sum(row.verdict == "unchanged" for row in rows)),
        *_trends(outcome, figures, words),
        f"## {words('h_rules')}", rules(comparison, words),
    ]  # fmt: skip
    return "\n\n".join(part for part in body if part.strip()) + "\n"


def headline(outcome: Outcome, words: CompareWords) -> str:
    """The verdict in one line, with the exit code."""
    comparison = outcome.comparison
    failing = [row for row in comparison.rows if row.fails]
    parts = [_count(verdict, failing, words) for verdict in ("newly failing", "missing", "regressed")]
    whole = [words(f"m_{row.metric}") for row in comparison.set_rows if row.verdict == "regressed"]
    parts.append(words("count_set", metrics=words("comma").join(whole)) if whole else "")
    what = words("semicolon").join(part for part in parts if part)
    results = [*comparison.rows, *comparison.set_rows]
    if what:
        text = words("worse", what=what)
    elif n := sum(row.verdict == "not comparable" for row in results):
        text = words("incomparable", n=n)
    elif n := sum(row.verdict == "inconclusive" for row in results):
        text = words("unclear", n=n)
    else:
        text = words("fine", cases=len({row.case for row in comparison.rows}))
    return f"{text} {words('exit', code=outcome.code)}"


def _count(verdict: str, rows: Sequence[Row], words: CompareWords) -> str:
    those = [row for row in rows if row.verdict == verdict]
    return words(f"count_{verdict}", n=len(those), cases=len({row.case for row in those})) if those else ""


def by_harm(rows: Sequence[Row]) -> list[Row]:
    """The worst first: what fails, then by verdict; inside, the largest change first, harm before gain."""

    def harm(row: Row) -> tuple[int, float]:
        kind = -1 if row.fails else VERDICTS.index(row.verdict)
        if row.metric == STATUS or row.verdict == "missing":
            return kind, -math.inf
        if row.ratio is None or row.ratio <= 0:
            return kind, -1e9  # grew from nothing, or sank to it
        rise = METRICS[row.metric].sign * math.log(row.ratio)
        return kind, -abs(rise) if row.verdict == "improved" else -rise

    return sorted(rows, key=harm)


def _remarks(comparison: Comparison, words: CompareWords) -> list[str]:
    """Axis, and what is incomplete."""
    names = words("comma").join(f"`{name}`" for name in comparison.conditions.axis)
    known = comparison.baseline.environment and comparison.candidate.environment
    kind = "axis_stated" if comparison.conditions.stated else "axis_found"
    lines = [words(kind, names=names) if names else words("axis_none")]
    lines += [] if known else [words("environment_unknown")]
    lines += [
        words("incomplete", label=inline(side.label), reason=inline(side.incomplete))
        for side in (comparison.baseline, comparison.candidate)
        if side.incomplete
    ]
    return [bullets(lines)]


def summary(comparison: Comparison, words: CompareWords) -> str:
    """One row a metric: how many cases got which verdict, and the verdict over the whole set."""
    counts = comparison.counts()
    used = [verdict for verdict in VERDICTS if any(verdict in of for of in counts.values())]
    whole = {row.metric: row for row in comparison.set_rows}
    headers = [words("metric"), *(words(f"v_{verdict}") for verdict in used), words("set_wide")]
    order = [STATUS, *(metric.name for metric in comparison.metrics)]
    rows = [
        [words(f"m_{name}"), *(str(counts[name].get(v, "")) for v in used), _whole(whole.get(name), words)]
        for name in order
        if name in counts
    ]
    return table(headers, rows)


def _whole(row: SetRow | None, words: CompareWords) -> str:
    if row is None:
        return ""
    bounds = f" ({row.low:.3f} … {row.high:.3f})" if row.low is not None and row.high is not None else ""
    return f"{cells.times(row.ratio)}{bounds} {words(f'v_{row.verdict}')}"


def _environment(comparison: Comparison, words: CompareWords) -> str:
    found = comparison.conditions.differences
    if not found:
        return words("none")
    rows = [[d.name, _short(d.baseline), _short(d.candidate), words(f"role_{d.role}")] for d in found]
    headers = [words("name"), comparison.baseline.label, comparison.candidate.label, words("role")]
    return table(headers, rows, left=4)


def _short(value: object) -> str:
    text = DASH if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def listing_headers(words: CompareWords) -> list[str]:
    """Headers of `listing_row`."""
    keys = ("case", "metric", "verdict", "baseline", "candidate", "ratio", "interval", "q", "launches", "note")
    return [words(key) for key in keys]


def listing_row(row: Row, words: CompareWords) -> list[str]:
    """One row of a table of results."""
    return [
        row.case, words(f"m_{row.metric}"), words(f"v_{row.verdict}"), cells.value(row.metric, row.baseline),
        cells.value(row.metric, row.candidate), cells.ratio(row), cells.interval(row), cells.q_value(row),
        cells.launches(row), cells.note(row, words),
    ]  # fmt: skip


def _listing(rows: Sequence[Row], words: CompareWords) -> str:
    if not rows:
        return words("none")
    text = table(listing_headers(words), [listing_row(row, words) for row in rows[:LISTED]], left=3)
    return text + (f"\n\n{words('more_rows', n=len(rows) - LISTED)}" if len(rows) > LISTED else "")


def _optional(heading: str, rows: Sequence[Row], words: CompareWords) -> list[str]:
    return [f"## {words(heading)}", _listing(rows, words)] if rows else []


def _barred(rows: Sequence[Row], words: CompareWords) -> list[str]:
    """What could not be judged: one line a case and reason, with the metrics it concerns."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        key = (row.case, words(f"v_{row.verdict}"), cells.note(row, words))
        groups.setdefault(key, []).append(words(f"m_{row.metric}"))
    if not groups:
        return []
    lines = [[case, verdict, note, words("comma").join(names)] for (case, verdict, note), names in groups.items()]
    headers = [words("case"), words("verdict"), words("note"), words("metric")]
    rest = [words("more_rows", n=len(lines) - LISTED)] if len(lines) > LISTED else []
    return [f"## {words('h_bars')}", table(headers, lines[:LISTED], left=4), *rest]


def _where(outcome: Outcome, words: CompareWords) -> list[str]:
    """Changes by component, and the phases of the cases that changed."""
    found = outcome.splits
    body = []
    if found:
        rows = [_split_row(split, words) for split in found[:LISTED]]
        headers = [words("case"), words("metric"), words("change"), words("component")]
        body += [f"## {words('h_where')}", table(headers, rows, left=2)]
        body += [words("more_rows", n=len(found) - LISTED)] if len(found) > LISTED else []
    if outcome.phases:
        rows = [_phase_row(change) for change in outcome.phases]
        headers = [words("phase"), words("cases"), f"{words('baseline')} s", f"{words('candidate')} s", words("ratio")]
        body += [f"### {words('h_phases')}", words("phases_note"), table(headers, rows)]
    return body


def _split_row(split: Split, words: CompareWords) -> list[str]:
    unit: Callable[[float], str] = size if split.unit == "bytes" else cells.seconds
    before = sum(part[1] for part in split.parts)
    relative = f" ({100 * split.change / before:+.1f} %)" if before else ""
    change = f"{'+' if split.change > 0 else ''}{unit(split.change)}{relative}"
    carrier = split.carrier
    if carrier is None:
        parts = words("comma").join(f"{_part(n, words)} {unit(b)} → {unit(a)}" for n, b, a in split.parts[:3])
        return [split.case, words(f"m_{split.metric}"), change, words("spread_out", parts=parts)]
    name, part = carrier
    key = "all_of_it" if part >= ALL else "most_of_it"
    text = words(key, name=_part(name, words), share=share(min(part, 1.0)))
    return [split.case, words(f"m_{split.metric}"), change, text]


def _part(name: str, words: CompareWords) -> str:
    return words.get(f"part_{name}", name.replace("_", " "))


def _phase_row(change: PhaseChange) -> list[str]:
    return [
        change.phase, str(change.cases), f"{change.baseline_s:.2f}", f"{change.candidate_s:.2f}",
        cells.times(change.ratio),
    ]  # fmt: skip


def _pictures(figures: Mapping[str, str], prefix: str, words: CompareWords) -> list[str]:
    found = []
    for name, path in figures.items():
        kind, _, metric = name.partition(":")
        if kind == prefix:
            found.append(image(words(f"figure_{kind}", metric=words(f"m_{metric}")), path))
    return found


def _trends(outcome: Outcome, figures: Mapping[str, str], words: CompareWords) -> list[str]:
    if not outcome.trends:
        return []
    body = [f"## {words('h_trend')}", words("trend_note")]
    for trend in outcome.trends:
        body += [f"### {words(f'm_{trend.metric.name}')}"] + ([] if trend.tested else [words("trend_untested")])
        body += _pictures({k: v for k, v in figures.items() if k.endswith(f":{trend.metric.name}")}, "trend", words)
        body.append(_trend_table(trend, words))
    return body


def _trend_table(trend: Trend, words: CompareWords) -> str:
    lines = sorted(trend.lines, key=lambda line: (not line.changes, -spread(line)))
    shown = lines[:LISTED]
    rows = [[line.case, *(_trend_cell(line, i, trend) for i in range(len(trend.labels)))] for line in shown]
    if trend.overall:
        rows.insert(0, [words("all_cases"), *(cells.times(ratio) for ratio in trend.overall)])
    text = table([words("case"), *trend.labels], rows)
    # The helper escapes the stars of cells; marks are made of characters that no record holds.
    text = text.replace("\ue000", "**").replace("\ue001", "**")
    return text + (f"\n\n{words('trend_rest', n=len(lines) - LISTED)}" if len(lines) > LISTED else "")


def _trend_cell(line: Line, i: int, trend: Trend) -> str:
    if trend.metric.kind == "share":
        return DASH if line.values[i] is None else share(line.values[i] or 0.0)
    ratio = line.ratios[i]
    if i not in line.changes:
        return cells.times(ratio)
    before = next(r for r in reversed(line.ratios[:i]) if r is not None)
    return f"\ue000{'▲' if ratio is not None and ratio > before else '▼'} {cells.times(ratio)}\ue001"


def spread(line: Line) -> float:
    """Largest ratio over smallest, as a logarithm."""
    known = [r for r in line.ratios if r]
    return math.log(max(known) / min(known)) if known and min(known) > 0 else 0.0
