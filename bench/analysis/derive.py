"""Quantities computed from stored facts, each with its definition. Nothing here is ever stored.

Every function takes partial records: what cannot be computed is None, never an error or a zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from bench.records.memory import widest_phase
from bench.records.schema import CaseRecord, Evaluation, RankRecord
from bench.spec.case import Case

METERS = ("allocated", "reserved", "device", "tally", "resident")
"""Ways to measure a rank's peak; what each counts is said in `records.memory.PhaseMemory` and `MemoryPass`."""
_ARM_FIELDS = {
    "id", "tuning", "lora_rank", "lora_alpha", "lora_dropout", "target_modules", "learning_rate",
}  # fmt: skip


def _per(part: float | None, whole: float | None) -> float | None:
    """Quotient, or None where a side is missing or the divisor is zero."""
    return part / whole if part is not None and whole else None


def samples_per_s(case: CaseRecord) -> float | None:
    """Real training examples per second over all ranks, within the timed window."""
    return _per(case.timed.samples, case.timed.window_s) if case.timed else None


def tokens_per_s(case: CaseRecord) -> float | None:
    """Non-padding tokens per second over all ranks."""
    return _per(case.timed.tokens, case.timed.window_s) if case.timed else None


def padding_share(case: CaseRecord) -> float | None:
    """Share of the computed positions that hold padding, 0 to 1."""
    share = _per(case.timed.tokens, case.timed.padded_tokens) if case.timed else None
    return 1 - share if share is not None else None


def step_s(case: CaseRecord) -> float | None:
    """Median over the timed steps of the slowest rank's step time, in seconds."""
    return statistics.median(case.timed.step_s) if case.timed and case.timed.step_s else None


def data_wait_share(case: CaseRecord) -> float | None:
    """Share of the timed window that the slowest rank waits for batches, 0 to 1."""
    return _per(case.timed.data_wait_s, case.timed.window_s) if case.timed else None


def loop_share(case: CaseRecord) -> float | None:
    """Largest share over the ranks of the timed window spent neither in the engine nor waiting for data, 0 to 1."""
    shares = [_per(rank.outside_engine_s, rank.window_s) for rank in case.ranks]
    return max((share for share in shares if share is not None), default=None)


def last_train_loss(case: CaseRecord) -> float | None:
    """Training loss of the last optimizer step that has one, in nats per answer token."""
    return next((loss for loss in reversed(case.losses) if loss is not None), None)


def trainable_share(case: CaseRecord) -> float | None:
    """Trainable parameters over all parameters, adapters included, 0 to 1."""
    return _per(case.parameters.trainable, case.parameters.total) if case.parameters else None


def exact_match(evaluation: Evaluation | None) -> float | None:
    """Share of held-out samples whose whole answer is right, 0 to 1."""
    return _per(evaluation.exact_samples, evaluation.samples) if evaluation else None


def exact_match_interval(evaluation: Evaluation | None) -> tuple[float, float] | None:
    """95 % interval of `exact_match` over the held-out samples, as shares from 0 to 1."""
    return wilson(evaluation.exact_samples, evaluation.samples) if evaluation else None


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float] | None:
    """Wilson's score interval of a share (E. B. Wilson, JASA 22, 1927).

    Args:
        successes: samples that are right.
        trials: samples in all; None comes back for 0.
        z: standard-normal quantile, by default of 95 %.
    """
    if trials <= 0:
        return None
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def token_accuracy(evaluation: Evaluation | None) -> float | None:
    """Share of answer tokens that are right, 0 to 1."""
    return _per(evaluation.correct_tokens, evaluation.loss_tokens) if evaluation else None


def eval_loss(evaluation: Evaluation | None) -> float | None:
    """Mean held-out loss per answer token, in nats."""
    return _per(evaluation.loss_sum, evaluation.loss_tokens) if evaluation else None


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


def fullest_rank(case: CaseRecord, meter: str) -> int | None:
    """Rank with the highest peak by one meter, the first of equals; null where no rank has it."""
    peaks = rank_peaks(case, meter)
    return max(sorted(peaks), key=lambda rank: peaks[rank]) if peaks else None


def peak_spread(case: CaseRecord, meter: str) -> float | None:
    """Peak of the fullest rank over that of the emptiest: 1 where all are alike; null below two ranks."""
    peaks = rank_peaks(case, meter).values()
    return _per(max(peaks), min(peaks)) if len(peaks) > 1 else None


def peak_split(rank: RankRecord) -> tuple[str, dict[str, int]] | None:
    """Phase of the memory pass in which a rank peaks, and its bytes by category at that moment."""
    phases = rank.memory_pass.phases if rank.memory_pass else {}
    name = widest_phase(phases)
    return (name, phases[name].by_category) if name else None


def checkpoint_bytes(case: CaseRecord) -> int | None:
    """Bytes of the exported weights or adapter: what one ships."""
    return case.checkpoint.export_bytes if case.checkpoint else None


def native_checkpoint_bytes(case: CaseRecord) -> int | None:
    """Bytes of the engine's own resume checkpoint over all ranks and roles."""
    native = case.checkpoint.native_bytes if case.checkpoint else {}
    return sum(native.values()) if native else None


def differing_fields(full: Case, lora: Case) -> list[str]:
    """Fields in which two cases differ beyond the tuning method, its learning rate and the seed."""
    return [
        name
        for name in Case.model_fields
        if name not in _ARM_FIELDS | {"seed"} and getattr(full, name) != getattr(lora, name)
    ]


def same_but_seed(one: Case, other: Case) -> bool:
    """Whether two cases are launches of the same work: equal save for `id` and `seed`."""
    return one.model_copy(update={"id": other.id, "seed": other.seed}) == other


Getter = Callable[[CaseRecord], float | None]


@dataclass(frozen=True)
class Quantity:
    """One derived number of a case, with what a reader needs to judge it."""

    name: str
    """As in the tables of `compare`."""
    unit: Literal["bytes", "count", "per_s", "s", "share", "nats", "ratio"]
    """`share` is 0 to 1; `nats` are per answer token."""
    better: Literal["higher", "lower"] | None
    """Direction of improvement; None where neither is."""
    field: str
    """Field of the record it comes from, as named in `CaseRecord.missing`."""
    value: Getter

    @property
    def column(self) -> str:
        """Column name, with the unit at its end."""
        return self.name if self.unit == "count" or self.name.endswith(self.unit) else f"{self.name}_{self.unit}"


def _of(moment: Literal["before", "after"], function: Callable[[Evaluation | None], float | None]) -> Getter:
    return lambda case: function(case.evaluation.get(moment))


def _peak(meter: str) -> Getter:
    return lambda case: peak_bytes(case, meter)


def _all(quantities: Iterable[Quantity]) -> dict[str, Quantity]:
    return {quantity.name: quantity for quantity in quantities}


def _trainable(case: CaseRecord) -> int | None:
    return case.parameters.trainable if case.parameters else None


QUANTITIES: dict[str, Quantity] = _all(
    [
        Quantity("peak_bytes", "bytes", "lower", "ranks", peak_bytes),
        *(Quantity(f"peak_{m}_bytes", "bytes", "lower", "ranks", _peak(m)) for m in METERS),
        Quantity("trainable_parameters", "count", None, "parameters", _trainable),
        Quantity("trainable_share", "share", None, "parameters", trainable_share),
        Quantity("samples_per_s", "per_s", "higher", "timed", samples_per_s),
        Quantity("tokens_per_s", "per_s", "higher", "timed", tokens_per_s),
        Quantity("step_s", "s", "lower", "timed", step_s),
        Quantity("data_wait_share", "share", "lower", "timed", data_wait_share),
        Quantity("loop_share", "share", "lower", "ranks", loop_share),
        Quantity("padding_share", "share", "lower", "timed", padding_share),
        Quantity("last_train_loss", "nats", "lower", "losses", last_train_loss),
        Quantity("exact_match", "share", "higher", "evaluation.after", _of("after", exact_match)),
        Quantity("token_accuracy", "share", "higher", "evaluation.after", _of("after", token_accuracy)),
        Quantity("eval_loss", "nats", "lower", "evaluation.after", _of("after", eval_loss)),
        Quantity("base_exact_match", "share", None, "evaluation.before", _of("before", exact_match)),
        Quantity("base_token_accuracy", "share", None, "evaluation.before", _of("before", token_accuracy)),
        Quantity("base_eval_loss", "nats", None, "evaluation.before", _of("before", eval_loss)),
        Quantity("checkpoint_bytes", "bytes", "lower", "checkpoint", checkpoint_bytes),
        Quantity("native_checkpoint_bytes", "bytes", "lower", "checkpoint", native_checkpoint_bytes),
        Quantity("outside_steps_s", "s", "lower", "outside_steps_s", lambda case: case.outside_steps_s),
    ]
)
"""Every derived quantity by name."""

METRICS: dict[str, Getter] = {
    name: QUANTITIES[name].value
    for name in (
        "peak_bytes", "trainable_parameters", "samples_per_s", "tokens_per_s", "step_s", "exact_match",
        "token_accuracy", "eval_loss", "checkpoint_bytes",
    )
}  # fmt: skip
"""Headline metrics by name; units end the names."""
