"""How a comparison was judged: thresholds, what was assumed, and what was found of it."""

from __future__ import annotations

import math

from bench.analysis.metrics import Metric
from bench.analysis.ratios import MIN_LAUNCHES, SET_LEVEL, TRUSTED_LAUNCHES
from bench.analysis.verdict import Comparison
from bench.report.compare_words import CompareWords
from bench.report.formats import DASH
from bench.report.markdown import bullets, inline, table


def rules(comparison: Comparison, words: CompareWords) -> str:
    """Everything that decided a verdict."""
    values = {
        "rule_unit": {}, "rule_pool": {}, "rule_fdr": {"fdr": percent(comparison.fdr), "min": MIN_LAUNCHES},
        "rule_unchanged": {"trusted": TRUSTED_LAUNCHES}, "rule_set": {"level": percent(SET_LEVEL)},
        "rule_exact": {}, "rule_loss": {}, "rule_share": {},
    }  # fmt: skip
    sentences = [words(key, **placeholders) for key, placeholders in values.items()]
    aside = [
        f"{inline(case)} r{number} ({inline(label)})"
        for found in comparison.assumptions[:1]
        for case, label, number in found.aside[:20]
    ]
    sentences += [words("aside", names=", ".join(aside))] if aside else []
    return "\n\n".join([thresholds(comparison.metrics, words), _assumptions(comparison, words), bullets(sentences)])


def thresholds(metrics: list[Metric], words: CompareWords) -> str:
    """The sizes that decided, one row a metric."""
    headers = [words(key) for key in ("metric", "better", "kind", "min_effect", "detect")]
    rows = [
        [words(f"m_{m.name}"), words(m.better), words(m.kind), _size(m, m.min_effect), _size(m, m.detect)]
        for m in metrics
    ]
    return table(headers, rows, left=3)


def _assumptions(comparison: Comparison, words: CompareWords) -> str:
    if not comparison.assumptions:
        return ""
    headers = [words("metric"), words("cases"), f"{words('noise')} ({comparison.baseline.label})",
               f"{words('noise')} ({comparison.candidate.label})", words("borrowed"), words("shared")]  # fmt: skip
    rows = []
    for found in comparison.assumptions:
        noise = [DASH if math.isnan(sd) else f"{100 * sd:.2f} %" for sd in found.noise]
        unknown = math.isnan(found.noise[0])
        df = DASH if unknown else words("unbounded") if found.prior_df is None else f"{found.prior_df:.1f}"
        shared = DASH if unknown else percent(found.shared)
        rows.append([words(f"m_{found.metric}"), str(found.cases), *noise, df, shared])
    return table(headers, rows)


def _size(metric: Metric, amount: float) -> str:
    return f"{100 * amount:g} pp" if metric.kind == "share" else f"± {100 * amount:g} %"


def percent(amount: float) -> str:
    """A share in percent, short."""
    return f"{100 * amount:.3g} %"
