"""The report as one Markdown text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from bench.report import cases, facts, headline, memory, planned
from bench.report.markdown import code, image, inline
from bench.report.source import Results
from bench.report.words import Words

FIGURES = ("memory", "throughput", "loss", "accuracy")


def render(results: Results, words: Words, figures: Mapping[str, str | None]) -> str:
    """Write the whole report in one language.

    Args:
        results: what was read.
        words: the language.
        figures: path relative to the report by figure name; None where there was nothing to draw.
    """
    pictures = {name: _picture(name, figures.get(name), words) for name in FIGURES}
    body = [
        f"# {words('title')}: {inline(results.run.suite)}", _opening(results, words),
        *_section(words("h_headline"), headline.section(results, words)),
        *_section(words("h_cases"), cases.all_cases(results, words), *(pictures[n] for n in FIGURES[1:])),
        *_section(words("h_memory"), memory.section(results, words), pictures["memory"]),
        *_section(words("h_plan"), planned.section(results, words)),
        *_section(words("h_phases"), cases.phases(results, words)),
        *_section(words("h_checkpoints"), cases.checkpoints(results, words)),
        *_section(words("h_failures"), facts.failures(results, words)),
        *_section(words("h_remarks"), facts.remarks(results, words)),
        *_section(words("h_missing"), facts.missing(results, words)),
        *_section(words("h_data"), facts.data(results, words)),
        *_section(words("h_models"), facts.models(results, words)),
        *_section(words("h_environment"), facts.environment(results, words)),
        words("closing"),
    ]  # fmt: skip
    return "\n\n".join(part.rstrip() for part in body if part.strip()) + "\n"


def _section(heading: str, *parts: str) -> list[str]:
    return [f"## {heading}", *parts]


def _picture(name: str, path: str | None, words: Words) -> str:
    return image(words(f"figure_{name}"), path) if path else words("no_figure", name=words(f"figure_{name}"))


def _opening(results: Results, words: Words) -> str:
    """What was run, and whether all of it is here."""
    run, env = results.run, results.run.environment
    models = list(dict.fromkeys(record.case.model for record in results.records))
    sentence = words(
        "opening", suite=code(run.suite), models=", ".join(code(m) for m in models) or words("unknown"),
        ranks=run.world_size, hosts=len(set(run.hosts)) or 1, device=inline(env.device), date=_date(run.started_at),
        description=inline(run.suite_description),
    )  # fmt: skip
    return f"{sentence}\n\n{_completeness(results, words)}"


def _completeness(results: Results, words: Words) -> str:
    """How many of the planned launches have a record, and which have none."""
    run = results.run
    planned = [slot for slot in results.slots if slot.case_id in run.planned and slot.repeat <= run.repeats]
    there = [slot for slot in planned if slot.record]
    absent = [slot.label for slot in planned if not slot.record]
    ok = sum(slot.status == "ok" for slot in planned)
    kind = "complete" if run.complete and not absent else "incomplete"
    lines = [words(kind, there=len(there), planned=len(planned), ok=ok, repeats=run.repeats)]
    if run.interrupted:
        lines.append(words("interrupted", reason=inline(run.interrupted)))
    if absent:
        lines.append(words("absent", names=", ".join(map(code, absent))))
    extra = [slot.label for slot in results.slots if slot not in planned]
    if extra:
        lines.append(words("unplanned", names=", ".join(map(code, extra))))
    return "  \n".join(lines)


def _date(stamp: str) -> str:
    try:
        return datetime.fromisoformat(stamp).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:  # shown as it was written rather than not at all
        return inline(stamp)
