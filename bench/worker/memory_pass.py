"""A few traced steps after the timed pass; their times never count."""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.memory import MemoryPass
from bench.spec.case import Case
from bench.worker.batches import Feed
from bench.worker.engines.protocol import Engine
from bench.worker.tally import Tally


def trace_memory(engine: Engine, case: Case, feed: Feed, global_tokens: Sequence[int], vocab: int) -> MemoryPass:
    """Attribute the peak of this rank to categories.

    Args:
        engine: the trained engine; its weights change by a few more steps at rate 0.
        case: the case.
        feed: micro-batches of at least `memory_steps` steps, the first ones of the case.
        global_tokens: loss tokens of each of these steps.
        vocab: size of the vocabulary, which tells logits from activations.
    """
    tally = Tally(engine.device.torch.type, vocab)
    tally.watch(engine.model)
    engine.tracing(tally)
    engine.mark = tally.mark
    try:
        with tally:
            tally.begin(engine.memory_roles())
            for step in range(case.memory_steps):
                feed.reset()
                engine.train_batch(_Counted(feed, tally), global_tokens[step], 0.0)
                tally.mark("steady")
    finally:
        engine.mark = lambda phase: None
        tally.end()
    return MemoryPass(status="ok", phases=tally.phases, peak_bytes=max(p.peak_bytes for p in tally.phases.values()))


class _Counted:
    """Counts each batch under its own category before the engine sees it."""

    def __init__(self, feed: Feed, tally: Tally) -> None:
        self._feed, self._tally = feed, tally

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> object:
        batch = next(self._feed)
        for tensor in (batch.input_ids, batch.labels):
            self._tally.add(tensor, "batch")
        return batch
