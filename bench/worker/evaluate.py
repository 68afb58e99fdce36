"""Held-out evaluation under any engine: each sample once, whatever the rank count and batch size."""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.schema import Evaluation
from bench.worker.batches import Collate
from bench.worker.data import Sample
from bench.worker.engines.protocol import Engine
from bench.worker.loss import Score


def evaluate(engine: Engine, samples: Sequence[Sample], batch_size: int, pad: int) -> list[Score]:
    """Score this data-parallel rank's share of the samples.

    Args:
        engine: the wrapped model.
        samples: the whole split, equal on every rank.
        batch_size: samples of one forward pass.
        pad: padding token.

    Returns:
        Scores of the samples this rank was given; over all ranks each sample occurs once.
    """
    # By length, so that a batch holds little padding and every rank gets the same mixture.
    ordered = sorted(samples, key=lambda sample: len(sample.tokens))
    mine = ordered[engine.dp_rank :: engine.dp_size]
    # Sharded engines gather weights in every forward pass: all ranks must make the same number of passes.
    passes = -(-len(ordered[:: engine.dp_size]) // batch_size)
    collate, scores = Collate(pad), []
    for i in range(passes):
        share = mine[i * batch_size : (i + 1) * batch_size]
        batch = collate(share or ordered[:1]).to(engine.device.torch)
        scored = engine.score(batch)
        scores += scored if share else []
    engine.settle()
    return scores


def summed(scores: Sequence[Score]) -> Evaluation:
    """Add up scores."""
    return Evaluation(
        samples=len(scores),
        loss_sum=sum(s.loss_sum for s in scores),
        loss_tokens=sum(s.loss_tokens for s in scores),
        correct_tokens=sum(s.correct_tokens for s in scores),
        exact_samples=sum(s.exact for s in scores),
    )
