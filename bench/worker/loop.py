"""The only training loop. Everything but the engine's own work must cost next to nothing here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.spec.case import Case
from bench.worker.batches import Feed
from bench.worker.engines.protocol import Engine, StepResult
from bench.worker.optimizer import learning_rate


@dataclass(frozen=True)
class StepRow:
    """One row of steps.parquet; see `bench.records.columns` for units."""

    rank: int
    step: int
    timed: bool
    start_s: float
    wall_s: float
    data_wait_s: float
    engine_s: float
    loss_sum: float
    loss_tokens: int
    samples: int
    tokens: int
    padded_tokens: int
    grad_norm: float | None
    learning_rate: float
    skipped: bool


def train(engine: Engine, case: Case, feed: Feed, global_tokens: Sequence[int], rank: int) -> Iterator[StepRow]:
    """Train step by step; the caller takes as many steps as its phase holds.

    Args:
        engine: the wrapped model.
        case: the case.
        feed: this rank's micro-batches.
        global_tokens: loss tokens of each global batch of the case.
        rank: this rank.

    Yields:
        A row after each optimizer step, once the device is done and the clock has stopped.
    """
    clock, fence = time.perf_counter, engine.device.fence
    applied = 0
    for step in range(case.steps):
        feed.reset()
        fence()
        start = clock()
        # The schedule follows applied steps, as it would with a scheduler of the engine's.
        rate = learning_rate(case, applied)
        inside = clock()
        result = engine.train_batch(feed, global_tokens[step], rate)
        fence()
        end = clock()
        applied += not result.skipped
        engine_s = end - inside - feed.wait_s
        yield _row(rank, step, step >= case.warmup_steps, start, end, engine_s, feed, rate, result)


def _row(
    rank: int, step: int, timed: bool, start: float, end: float, engine_s: float, feed: Feed, rate: float,
    result: StepResult,
) -> StepRow:  # fmt: skip
    return StepRow(
        rank=rank, step=step, timed=timed, start_s=start, wall_s=end - start, data_wait_s=feed.wait_s,
        engine_s=engine_s, loss_sum=float(result.loss_sum), loss_tokens=feed.loss_tokens,
        samples=feed.samples, tokens=feed.tokens, padded_tokens=feed.padded_tokens,
        grad_norm=None if result.grad_norm is None else float(result.grad_norm),
        learning_rate=rate, skipped=result.skipped,
    )  # fmt: skip
