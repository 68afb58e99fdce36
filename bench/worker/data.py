"""From rows to token samples: Alpaca and chat messages, prompts masked, one held-out split for all.

The same rows land in the same global batches for every arm and every rank count: the order depends on the
seed alone, and each rank takes its slice of every global batch.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.errors import DataError
from bench.records.schema import DataFacts
from bench.spec.case import Case
from bench.spec.paths import local_path, looks_local

IGNORE = -100
SPLIT_SEED = 20240607
"""Shuffles rows once before the held-out split: equal for every case, whatever its own seed."""
_LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}


@dataclass(frozen=True)
class Sample:
    """One tokenised example."""

    row: int
    """Row number in the source."""
    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    """Equal to `tokens` where the token counts in the loss, else IGNORE."""
    truncated: bool

    @property
    def loss_tokens(self) -> int:
        """Tokens the loss counts; the first token of a sample is never predicted."""
        return sum(label != IGNORE for label in self.labels[1:])


@dataclass(frozen=True)
class Dataset:
    """What one case feeds and evaluates."""

    train: list[Sample]
    """One entry per training position, in order: steps × global batch, repeated over epochs."""
    held_out: list[Sample]
    facts: DataFacts


def load_rows(case: Case) -> list[dict[str, Any]]:
    """Read the case's rows through `datasets`.

    Raises:
        DataError: missing, unreadable or empty file, or an unknown ending.
    """
    import datasets

    datasets.disable_progress_bars()
    path = local_path(case.data)
    try:
        if path is None:
            if looks_local(case.data):
                raise DataError(f"data: no file {case.data!r}")
            return list(datasets.load_dataset(case.data, split=case.data_split))
        if path.suffix not in _LOADERS:
            raise DataError(f"data: {path} ends in {path.suffix!r}; accepted: {', '.join(_LOADERS)}")
        reader = getattr(datasets.Dataset, f"from_{_LOADERS[path.suffix]}")
        # A cache of this process alone: ranks that start together would race for a shared one.
        with tempfile.TemporaryDirectory(prefix="ftbench-datasets-") as cache:
            rows = list(reader(str(path), keep_in_memory=True, cache_dir=cache))
    except DataError:
        raise
    except Exception as error:  # datasets wraps parse errors in many types of its own
        raise DataError(f"data: {case.data!r} cannot be read: {str(error).splitlines()[0]}") from error
    if not rows:
        raise DataError(f"data: {case.data!r} has no rows")
    return rows


def messages_of(row: dict[str, Any], number: int) -> list[dict[str, str]]:
    """A row as chat messages that end with an assistant's turn.

    Raises:
        DataError: neither `messages` nor `instruction` and `output`, naming the row and its columns.
    """
    if row.get("messages"):
        turns = [{"role": t["role"], "content": t["content"]} for t in row["messages"]]
        while turns and turns[-1]["role"] != "assistant":
            turns.pop()
        if not turns:
            raise DataError(f"data: row {number} has messages without an assistant's turn")
        return turns
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        prompt = row["instruction"] + (f"\n{row['input']}" if row.get("input") else "")
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": row["output"]}]
    raise DataError(
        f"data: row {number} has the columns {', '.join(row)}; expected instruction, input and output "
        "(Alpaca), or messages with role and content"
    )


def encode(messages: Sequence[dict[str, str]], tokenizer: Any) -> tuple[list[int], list[int]]:
    """Tokens and labels of one conversation; only assistants' turns are labelled.

    Uses the tokenizer's chat template, or, for models without one, `prompt\\n答/Answer: output`.

    Raises:
        DataError: the chat template rewrites earlier turns, so that a prompt is no prefix of the whole.
    """
    if not tokenizer.chat_template:
        tokens: list[int] = []
        labels: list[int] = []
        for turn in messages:
            answer = turn["role"] == "assistant"
            text = turn["content"] if answer else f"{turn['content']}\n答/Answer: "
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += [tokenizer.eos_token_id] if answer else []
            tokens += ids
            labels += ids if answer else [IGNORE] * len(ids)
        return tokens, labels
    tokens, labels = [], []
    for i, turn in enumerate(messages):
        if turn["role"] != "assistant":
            continue
        prompt = _template(tokenizer, messages[:i], add_generation_prompt=True)
        whole = _template(tokenizer, messages[: i + 1], add_generation_prompt=False)
        if whole[: len(prompt)] != prompt or prompt[: len(tokens)] != tokens:
            raise DataError("the tokenizer's chat template rewrites earlier turns; give single-turn data")
        labels += [IGNORE] * (len(prompt) - len(tokens)) + whole[len(prompt) :]
        tokens = whole
    return tokens, labels


def _template(tokenizer: Any, messages: Sequence[dict[str, str]], add_generation_prompt: bool) -> list[int]:
    return list(
        tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
    )


def build_dataset(case: Case, tokenizer: Any) -> Dataset:
    """Tokenise what the case needs, and no more.

    Args:
        case: the case.
        tokenizer: the model's tokenizer.

    Raises:
        DataError: no pad token, too few rows for one global batch beside the held-out rows, or no row
            that keeps a token to learn.
    """
    if tokenizer.pad_token_id is None:
        raise DataError(f"the tokenizer of {case.model!r} has no pad token; set one in its tokenizer_config.json")
    rows = load_rows(case)
    order = list(range(len(rows)))
    random.Random(SPLIT_SEED).shuffle(order)
    # Validation and test rows are both kept out of training, whichever of them is evaluated.
    held, pool = order[: 2 * case.eval_samples], order[2 * case.eval_samples :]
    if len(pool) < case.global_batch_size:
        raise DataError(
            f"data: {case.data!r} has {len(rows)} rows; {len(held)} are held out, and the {len(pool)} left "
            f"are fewer than one global batch of {case.global_batch_size}"
        )
    encoder = _Encoder(case, tokenizer, rows)
    split = held[: case.eval_samples] if case.eval_split == "validation" else held[case.eval_samples :]
    held_out = [s for s in map(encoder.sample, split) if s is not None]
    train = _train_positions(case, encoder, pool)
    return Dataset(train, held_out, _facts(case, encoder, train, held_out, len(rows), len(pool)))


class _Encoder:
    """Encodes rows once each, counting what is cut or left without a token to learn."""

    def __init__(self, case: Case, tokenizer: Any, rows: list[dict[str, Any]]) -> None:
        self.case, self.tokenizer, self.rows = case, tokenizer, rows
        self._seen: dict[int, Sample | None] = {}

    def sample(self, row: int) -> Sample | None:
        """The row's sample, or None where truncation leaves nothing to learn."""
        if row not in self._seen:
            tokens, labels = encode(messages_of(self.rows[row], row), self.tokenizer)
            limit = self.case.seq_len
            made = Sample(row, tuple(tokens[:limit]), tuple(labels[:limit]), len(tokens) > limit)
            self._seen[row] = made if made.loss_tokens else None
        return self._seen[row]

    @property
    def dropped(self) -> int:
        """Rows that kept no token to learn."""
        return sum(sample is None for sample in self._seen.values())


def _train_positions(case: Case, encoder: _Encoder, pool: list[int]) -> list[Sample]:
    """The samples of every global batch in order, reshuffled each epoch."""
    needed = case.steps * case.global_batch_size
    stream = _epochs(case, encoder, pool)
    if not case.fill:
        return [next(stream) for _ in range(needed)]
    return [_filled(stream, case.seq_len) for _ in range(needed)]


def _epochs(case: Case, encoder: _Encoder, pool: list[int]) -> Iterator[Sample]:
    epoch = 0
    while True:
        order = list(pool)
        random.Random(f"{case.seed}-{epoch}").shuffle(order)
        usable = 0
        for row in order:
            sample = encoder.sample(row)
            if sample is not None:
                usable += 1
                yield sample
        if not usable:
            raise DataError(f"data: no row of {case.data!r} keeps an answer token within seq_len {case.seq_len}")
        epoch += 1


def _filled(stream: Iterator[Sample], seq_len: int) -> Sample:
    """One sample of exactly `seq_len` tokens: the next rows end to end, the last one cut."""
    first = next(stream)
    tokens, labels = list(first.tokens), list(first.labels)
    while len(tokens) < seq_len:
        more = next(stream)
        tokens += more.tokens
        labels += more.labels
    return Sample(first.row, tuple(tokens[:seq_len]), tuple(labels[:seq_len]), len(tokens) > seq_len)


def _facts(
    case: Case, encoder: _Encoder, train: list[Sample], held_out: list[Sample], rows: int, pool: int
) -> DataFacts:
    distinct = list({id(sample): sample for sample in train}.values())
    lengths = np.array([len(sample.tokens) for sample in distinct])
    return DataFacts(
        source=case.data, fingerprint=fingerprint(train, held_out), rows=rows, train_rows=pool,
        train_samples=len(distinct), eval_samples=len(held_out), epochs=len(train) / pool,
        truncated=sum(sample.truncated for sample in distinct), dropped=encoder.dropped,
        length_mean=float(lengths.mean()), length_p50=float(np.percentile(lengths, 50)),
        length_p95=float(np.percentile(lengths, 95)), length_max=int(lengths.max()),
        answer_tokens_mean=float(np.mean([sample.loss_tokens for sample in distinct])),
    )  # fmt: skip


def fingerprint(train: Sequence[Sample], held_out: Sequence[Sample]) -> str:
    """SHA-256 over token ids and labels of all samples in order: equal means the same work was fed."""
    digest = hashlib.sha256()
    for part in (train, held_out):
        for sample in part:
            digest.update(np.array([len(sample.tokens), *sample.tokens, *sample.labels], np.int64).tobytes())
        digest.update(b"|")
    return digest.hexdigest()
