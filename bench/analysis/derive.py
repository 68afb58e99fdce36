"""Quantities computed from stored facts, each with its definition. Nothing here is ever stored."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.records.schema import CaseRecord, Evaluation


def samples_per_s(case: CaseRecord) -> float | None:
    """Real training examples per second over all ranks, within the timed window."""
    return case.timed.samples / case.timed.window_s if case.timed else None


def tokens_per_s(case: CaseRecord) -> float | None:
    """Non-padding tokens per second over all ranks."""
    return case.timed.tokens / case.timed.window_s if case.timed else None


def padding_share(case: CaseRecord) -> float | None:
    """Share of the computed positions that hold padding, 0 to 1."""
    return 1 - case.timed.tokens / case.timed.padded_tokens if case.timed else None


def step_s(case: CaseRecord) -> float | None:
    """Median over the timed steps of the slowest rank's step time, in seconds."""
    return statistics.median(case.timed.step_s) if case.timed and case.timed.step_s else None


def exact_match(evaluation: Evaluation | None) -> float | None:
    """Share of held-out samples whose whole answer is right, 0 to 1."""
    return evaluation.exact_samples / evaluation.samples if evaluation else None


def token_accuracy(evaluation: Evaluation | None) -> float | None:
    """Share of answer tokens that are right, 0 to 1."""
    return evaluation.correct_tokens / evaluation.loss_tokens if evaluation else None


def eval_loss(evaluation: Evaluation | None) -> float | None:
    """Mean held-out loss per answer token, in nats."""
    return evaluation.loss_sum / evaluation.loss_tokens if evaluation else None


def rank_peaks(case: CaseRecord, meter: str) -> dict[int, int]:
    """Peak bytes of each rank over the training phases, by one meter.

    Args:
        case: the record.
        meter: `allocated`, `reserved`, `device`, `resident`, or `tally` (memory pass).

    Returns:
        Rank → bytes; ranks that lack the meter are absent.
    """
    training = ("first_step", "warmup", "timed")
    field = {"device": "device_used_bytes"}.get(meter, f"{meter}_peak_bytes")
    peaks: dict[int, int] = {}
    for rank in case.ranks:
        if meter == "tally":
            values = [rank.memory_pass.peak_bytes if rank.memory_pass else None]
        else:
            values = [getattr(rank.memory[p], field) for p in training if p in rank.memory]
        known = [value for value in values if value is not None]
        if known:
            peaks[rank.rank] = max(known)
    return peaks


def main_meter(case: CaseRecord) -> str:
    """The meter that tables show for this case: the allocator's on a GPU, the tally on CPU."""
    return "allocated" if rank_peaks(case, "allocated") else "tally"


def peak_bytes(case: CaseRecord, meter: str | None = None) -> int | None:
    """Peak of the fullest rank by one meter (default `main_meter`); null where no rank has it."""
    peaks = rank_peaks(case, meter or main_meter(case))
    return max(peaks.values()) if peaks else None


def checkpoint_bytes(case: CaseRecord) -> int | None:
    """Bytes of the exported weights or adapter: what one ships."""
    return case.checkpoint.export_bytes if case.checkpoint else None


METRICS: dict[str, Callable[[CaseRecord], float | None]] = {
    "peak_bytes": peak_bytes,
    "trainable_parameters": lambda case: case.parameters.trainable if case.parameters else None,
    "samples_per_s": samples_per_s,
    "tokens_per_s": tokens_per_s,
    "step_s": step_s,
    "exact_match": lambda case: exact_match(case.evaluation.get("after")),
    "token_accuracy": lambda case: token_accuracy(case.evaluation.get("after")),
    "eval_loss": lambda case: eval_loss(case.evaluation.get("after")),
    "checkpoint_bytes": checkpoint_bytes,
}
"""Headline metrics by name; units end the names."""
