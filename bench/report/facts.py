"""What stands behind the numbers: failures, caveats, gaps, data, machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from bench.analysis import derive
from bench.analysis.bubble import bubble
from bench.records.schema import CaseRecord
from bench.report.formats import DASH, share, size
from bench.report.markdown import bullets, code, fence, inline, table
from bench.report.reasons import status_text
from bench.report.source import Results
from bench.report.words import Words
from bench.units import count


def failures(results: Results, words: Words) -> str:
    """Every case that did not succeed, with its reason and the end of its log."""
    never = [slot.label for slot in results.slots if slot.status == "not_run"]
    parts = [f"{words('never_ran')}: {', '.join(map(code, never))}"] if never else []
    for slot in results.slots:
        record = slot.record
        if slot.status in ("ok", "not_run"):
            continue
        lines = [f"### {inline(slot.label)} — {inline(status_text(slot, words))}"]
        reason = slot.problem or (record.reason if record else None)
        lines.append(f"{words('reason').capitalize()}: {inline(reason or words('no_reason'))}")
        if record and record.failing_rank is not None:
            lines.append(f"{words('failing_rank').capitalize()}: {record.failing_rank}")
        if record and record.log_tail:
            lines += [f"{words('log_tail').capitalize()}:", fence(record.log_tail, "text")]
        elif record and record.status in ("oom", "timeout", "crashed"):
            lines.append(words("no_log"))
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts) or words("no_failures")


def remarks(results: Results, words: Words) -> str:
    """Caveats, each once with the cases that it concerns."""
    found: dict[str, list[str]] = {}
    for slot in results.slots:
        for text in _caveats(slot.record, words) if slot.record else ():
            found.setdefault(text, []).append(slot.label)
    items = (f"{inline(text)} ({_cases(labels, results, words)})" for text, labels in found.items())
    return bullets(items) or words("no_remarks")


def _caveats(record: CaseRecord, words: Words) -> Iterable[str]:
    """The case's remarks, and what its measurements say against themselves."""
    yield from record.remarks
    idle = bubble(record)
    if idle:
        yield words("bubble", measured=share(idle.measured), ideal=share(idle.ideal))
    for rank in record.ranks:
        traced = rank.memory_pass
        if traced and traced.flagged:
            yield words("flagged", rank=rank.rank, text=traced.flagged)
        if rank.skipped_steps:
            yield words("skipped_steps", rank=rank.rank, n=rank.skipped_steps)
    if record.checkpoint and record.checkpoint.verified is False:
        yield words("not_verified", reason=record.checkpoint.reason or words("no_reason"))
    if any(loss is None for loss in record.losses):
        yield words("loss_gaps", n=sum(loss is None for loss in record.losses))


def missing(results: Results, words: Words) -> str:
    """Fields that are null, with the reason that the record states."""
    found: dict[tuple[str, str], list[str]] = {}
    for slot in results.slots:
        for field, reason in slot.record.missing.items() if slot.record else ():
            found.setdefault((field, reason), []).append(slot.label)
    if not found:
        return words("nothing_missing")
    rows = [[field, reason, _plain(labels, results, words)] for (field, reason), labels in found.items()]
    return table([words("field"), words("reason"), words("cases")], rows, left=3)


def _plain(labels: list[str], results: Results, words: Words) -> str:
    unique = list(dict.fromkeys(labels))
    return words("all_of_them") if len(unique) == len(results.slots) > 1 else ", ".join(unique)


def _cases(labels: list[str], results: Results, words: Words) -> str:
    return inline(_plain(labels, results, words))


def data(results: Results, words: Words) -> str:
    """What was fed: one column for each distinct set of facts."""
    groups: dict[str, list[tuple[str, CaseRecord]]] = {}
    for slot, record in results.with_value(lambda record: record.data):
        groups.setdefault(record.data.model_dump_json(), []).append((slot.label, record))
    if not groups:
        return words("no_data")
    columns = [_data_column(group, results, words) for group in groups.values()]
    rows = [[words(name), *(column[name] for column in columns)] for name in columns[0]]
    text = table([words("data_fact"), *(str(i + 1) for i in range(len(columns)))], rows, left=len(columns) + 1)
    prints = {record.data.fingerprint for group in groups.values() for _, record in group}
    verdict = words("fingerprints_differ", n=len(prints)) if len(prints) > 1 else words("fingerprints_equal")
    without = [slot.label for slot in results.slots if not slot.record or not slot.record.data]
    lacking = words("data_lacking", names=", ".join(map(code, without))) if without else ""
    return f"{text}\n\n{verdict} {lacking}".rstrip()


def _data_column(group: list[tuple[str, CaseRecord]], results: Results, words: Words) -> dict[str, str]:
    facts = group[0][1].data
    padding = [p for p in (derive.padding_share(record) for _, record in group) if p is not None]
    low_high = sorted({share(p) for p in (min(padding), max(padding))}) if padding else [DASH]
    return {
        "cases": _plain([label for label, _ in group], results, words), "source": facts.source,
        "fingerprint": facts.fingerprint[:16], "rows": f"{facts.rows:,}", "train_rows": f"{facts.train_rows:,}",
        "train_samples": f"{facts.train_samples:,}", "eval_samples": f"{facts.eval_samples:,}",
        "epochs": f"{facts.epochs:.3g}", "truncated": f"{facts.truncated:,}", "dropped": f"{facts.dropped:,}",
        "padding_share": "–".join(low_high),
        "lengths": f"{facts.length_mean:.1f} / {facts.length_p50:.0f} / {facts.length_p95:.0f} / {facts.length_max}",
        "answer_tokens_mean": f"{facts.answer_tokens_mean:.1f}",
    }  # fmt: skip


def models(results: Results, words: Words) -> str:
    """Architecture and size of each model, by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for _, record in results.with_value(lambda record: record.model):
        dims, parameters = record.model, record.parameters
        found.setdefault((record.case.model, record.case.weights), [
            record.case.model, record.case.weights, dims.architecture, count(parameters.base) if parameters else DASH,
            str(dims.layers), str(dims.hidden), f"{dims.heads} / {dims.kv_heads} × {dims.head_dim}",
            str(dims.intermediate), str(dims.vocab), words("yes" if dims.tied_embeddings else "no"),
        ])  # fmt: skip
    names = (
        "model",
        "weights",
        "architecture",
        "base_parameters",
        "layers",
        "hidden",
        "heads",
        "intermediate",
        "vocab",
        "tied",
    )
    return table([words(name) for name in names], found.values(), left=3) if found else words("no_model")


def environment(results: Results, words: Words) -> str:
    """Machine, versions and the command that makes the run again."""
    run, env = results.run, results.run.environment
    per_device = size(env.device_memory_bytes) if env.device_memory_bytes else DASH
    rows = [
        ("device", f"{env.device} ({env.device_kind})"), ("devices_per_node", str(env.devices_per_node)),
        ("device_memory", per_device), ("driver", env.driver or DASH), ("cpu", f"{env.cpu}, {env.cpu_count}"),
        ("host_memory", size(env.host_memory_bytes)),
        ("threads_per_rank", str(env.threads_per_rank) if env.threads_per_rank else DASH),
        ("platform", env.platform), ("ranks_hosts", _hosts(run.hosts, run.world_size)), ("launcher", run.launcher),
        ("hostfile", run.hostfile or DASH), ("overrides", _pairs(run.overrides)),
        ("commit", f"{env.commit or DASH}{_dirty(env.dirty, words)}"), ("run_id", run.run_id),
        ("started_at", run.started_at), ("finished_at", run.finished_at or DASH),
        ("variables", _pairs(env.variables)),
    ]  # fmt: skip
    parts = [table([words("item"), words("value")], [[words(k), v] for k, v in rows], left=2)]
    versions = [[name, version or words("not_installed")] for name, version in sorted(env.versions.items())]
    parts.append(table([words("package"), words("version")], versions, left=2))
    parts += [f"{words('command').capitalize()}:", fence(shlex.join(run.command), "sh")]
    if env.topology:
        parts += [f"{words('topology').capitalize()}:", fence(env.topology, "text")]
    return "\n\n".join(parts)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items())) or DASH


def _hosts(hosts: list[str], world_size: int) -> str:
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    return f"{world_size} ({', '.join(f'{host}: {n}' for host, n in counts.items())})"


def _dirty(dirty: bool | None, words: Words) -> str:
    return {True: f" ({words('dirty')})", False: f" ({words('clean')})", None: ""}[dirty]
