"""Make the tiny model and its tokenizer from nothing: `python -m bench.assets.build_tiny --out DIR`."""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from bench.assets import corpus, task

EOS, PAD = "<|endoftext|>", "<|pad|>"
VOCAB_SIZE = 1280
WINDOW = 128
BATCH_WINDOWS = 16
STEPS = 3200
WARMUP_STEPS = 100
LEARNING_RATE = 4e-3
TOKENIZER_SEED, TRAIN_SEED, HELDOUT_SEED, INIT_SEED = 1, 2, 3, 4


def train_tokenizer() -> Qwen2Tokenizer:
    """Train a byte-level BPE on the corpus.

    It keeps Qwen2's word splitting and NFC normalisation, because `AutoTokenizer` imposes them on
    every model of this architecture, whatever `tokenizer.json` says. As in GPT-2, one token ends a
    document and so begins the next.
    """
    untrained = Qwen2Tokenizer(bos_token=EOS, eos_token=EOS, pad_token=PAD)
    texts = islice(corpus.documents(TOKENIZER_SEED), 30_000)
    return untrained.train_new_from_iterator(texts, VOCAB_SIZE, show_progress=False)


def pack(tokenizer: Qwen2Tokenizer, seed: int, windows: int) -> torch.Tensor:
    """Encode documents, each closed by EOS, into a `[windows, WINDOW]` block of token ids."""
    stream, ids = corpus.documents(seed), []
    while len(ids) < windows * WINDOW:
        for encoding in tokenizer(list(islice(stream, 1000)))["input_ids"]:
            ids += [*encoding, tokenizer.eos_token_id]
    return torch.tensor(ids[: windows * WINDOW]).view(windows, WINDOW)


def build_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """Initialise the network, shaped so that tensor (4) and pipeline (4) splits divide it.

    The embeddings are untied, as in Qwen2.5-7B and larger: the first and last pipeline stage then
    share no weight.
    """
    torch.manual_seed(INIT_SEED)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def learning_rate_factor(step: int) -> float:
    """Linear warm-up, then linear decay to zero at `STEPS`."""
    return min((step + 1) / WARMUP_STEPS, (STEPS - step) / (STEPS - WARMUP_STEPS))


def pretrain(model: Qwen2ForCausalLM, windows: torch.Tensor) -> None:
    """Train on each window once."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    for step, batch in enumerate(windows.split(BATCH_WINDOWS)):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 200 == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def mean_loss(model: Qwen2ForCausalLM, windows: torch.Tensor) -> float:
    """Mean token loss in nats over equally sized windows."""
    return torch.stack([model(input_ids=w, labels=w).loss.float() for w in windows.split(BATCH_WINDOWS)]).mean().item()


def main() -> None:
    """Train tokenizer and model, write them and the task to a folder, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write, made if missing")
    parser.add_argument(
        "--threads", type=int, default=2, help="1 where other jobs share the cores, for waiting threads spin"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.monotonic()
    tokenizer = train_tokenizer()
    model = build_model(tokenizer)
    pretrain(model, pack(tokenizer, TRAIN_SEED, STEPS * BATCH_WINDOWS))
    model.to(torch.bfloat16)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    task.write(args.out / "task.jsonl")
    print(
        json.dumps(
            {
                "parameters": model.num_parameters(),
                "heldout_loss_bf16": round(mean_loss(model, pack(tokenizer, HELDOUT_SEED, 512)), 4),
                "pretraining_tokens": STEPS * BATCH_WINDOWS * WINDOW,
                "seconds": round(time.monotonic() - started),
            }
        )
    )


if __name__ == "__main__":
    main()
