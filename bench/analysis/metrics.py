"""The metrics that a comparison judges: what each is made of, which way is better, and its thresholds."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.errors import SpecError

Kind = Literal["noisy", "exact", "share"]
Scope = Literal["time", "memory", "bytes", "accuracy"]


@dataclass(frozen=True)
class Metric:
    """One quantity of a launch, and how two sides of it are judged."""

    name: str
    """Key in tables and files; its unit ends the name."""
    kind: Kind
    """`noisy`: statistics over launches. `exact`: within a tolerance. `share`: over held-out examples."""
    scope: Scope
    """What it measures; decides which differing conditions spoil it."""
    better: Literal["lower", "higher"]
    """Direction that people want."""
    min_effect: float
    """Smallest change that is called better or worse: relative, for `share` absolute."""
    detect: float
    """Change that `unchanged` rules out: relative, for `share` absolute. Never below `min_effect`."""
    default: bool = True
    """Judged unless `--metrics` says otherwise."""

    @property
    def sign(self) -> int:
        """+1 where a rise is bad, -1 where a rise is good."""
        return 1 if self.better == "lower" else -1


def _time(name: str, better: Literal["lower", "higher"] = "lower", default: bool = True) -> Metric:
    return Metric(name, "noisy", "time", better, 0.02, 0.10, default)


def _memory(name: str, tolerance: float, default: bool = True) -> Metric:
    return Metric(name, "exact", "memory", "lower", tolerance, tolerance, default)


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _time("step_s"),
        _time("samples_per_s", "higher"),
        _time("tokens_per_s", "higher", default=False),  # samples/s again, as long as the data is equal
        # The allocator rounds to 512 bytes and 2 MiB blocks; 0.1 % is well below a bucket that moved.
        _memory("allocated_peak_bytes", 0.001),
        # What it takes from the driver depends on fragmentation and garbage collection.
        _memory("reserved_peak_bytes", 0.02),
        # Live tensors at operator boundaries are counted, not sampled.
        _memory("tally_peak_bytes", 0.001),
        _memory("device_peak_bytes", 0.02, default=False),  # other processes are in it
        _memory("resident_peak_bytes", 0.05, default=False),
        # A header of a few bytes changes with the library that writes it.
        Metric("checkpoint_bytes", "exact", "bytes", "lower", 0.001, 0.001),
        Metric("resume_bytes", "exact", "bytes", "lower", 0.001, 0.001),
        Metric("exact_match", "share", "accuracy", "higher", 0.01, 0.05),
        Metric("token_accuracy", "share", "accuracy", "higher", 0.01, 0.05),
        # Same seed and data: what is left is rounding, which training amplifies a little.
        Metric("eval_loss", "exact", "accuracy", "lower", 0.01, 0.05),
        Metric("train_loss", "exact", "accuracy", "lower", 0.01, 0.05),
        _time("startup_s", default=False),
        _time("save_s", default=False),
        _time("load_s", default=False),
        _time("export_s", default=False),
        _time("wall_s", default=False),
    )
}
"""Every metric by name. `exact` metrics between `min_effect` and `detect` are inconclusive in one launch."""

METERS = {
    "allocated": "allocated_peak_bytes", "reserved": "reserved_peak_bytes", "tally": "tally_peak_bytes",
    "device": "device_peak_bytes", "resident": "resident_peak_bytes",
}  # fmt: skip
"""Meter of `derive.rank_peaks` → metric."""


def choose(
    patterns: str | None,
    min_effect: Mapping[str, float] | None = None,
    detect: Mapping[str, float] | None = None,
) -> list[Metric]:
    """Select metrics and apply thresholds.

    Args:
        patterns: comma-separated names or shell patterns; None takes the default ones.
        min_effect: metric name, pattern or `*` → smallest change that counts.
        detect: the same for the change that `unchanged` rules out.

    Raises:
        SpecError: a pattern matches no metric, or a threshold is not between 0 and 1.
    """
    if patterns is None:
        chosen = [m for m in METRICS.values() if m.default]
    else:
        names = [name for part in patterns.split(",") for name in _matching(part.strip())]
        chosen = [METRICS[name] for name in dict.fromkeys(names)]
    smallest, ruled_out = _spread(min_effect or {}), _spread(detect or {})
    done = []
    for metric in chosen:
        low = smallest.get(metric.name, metric.min_effect)
        high = ruled_out.get(metric.name, max(metric.detect, low))
        if high < low:
            raise SpecError(f"--detect {metric.name}={high:g} is below its --min-effect {low:g}")
        done.append(replace(metric, min_effect=low, detect=high))
    return done


def parse_thresholds(option: str, pairs: Sequence[str]) -> dict[str, float]:
    """Turn `--min-effect 2%` or `--min-effect step_s=2%` into pattern → share.

    Args:
        option: its name, for the error.
        pairs: values as typed; a bare number counts for every metric.

    Raises:
        SpecError: naming the value and what is accepted.
    """
    thresholds = {}
    for pair in pairs:
        name, equals, text = pair.rpartition("=")
        text = text.strip()
        try:
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1:
            raise SpecError(f"{option} {pair!r}: expected a share such as 2% or step_s=0.02, below 100%")
        thresholds[name.strip() if equals else "*"] = value
    return thresholds


def _spread(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Patterns to names; a name typed in full wins over a pattern."""
    by_width = sorted(thresholds.items(), key=lambda item: item[0] in METRICS)
    return {name: value for pattern, value in by_width for name in _matching(pattern)}


def _matching(pattern: str) -> list[str]:
    names = fnmatch.filter(METRICS, pattern)
    if not names:
        raise SpecError(f"metric {pattern!r} is not known; accepted: {', '.join(METRICS)}")
    return names
