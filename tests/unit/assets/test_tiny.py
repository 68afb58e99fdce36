"""The stored model folder, read without torch."""

import json
from math import prod

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer, pre_tokenizers

from bench.assets import task

TINY = task.PATH.parent
CONFIG = json.loads((TINY / "config.json").read_text())
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
EOS, PAD = "<|endoftext|>", "<|pad|>"


def shapes() -> dict[str, tuple[list[int], str]]:
    with safe_open(TINY / "model.safetensors", framework="numpy") as weights:
        names = list(weights.keys())
        slices = {name: weights.get_slice(name) for name in names}
        return {name: (piece.get_shape(), piece.get_dtype()) for name, piece in slices.items()}


def test_weights_are_few_and_bf16() -> None:
    assert sum(prod(shape) for shape, _ in shapes().values()) < 2_000_000
    assert {dtype for _, dtype in shapes().values()} == {"BF16"}
    assert (TINY / "model.safetensors").stat().st_size <= 4_000_000


def test_shape_can_be_split() -> None:
    assert CONFIG["architectures"] == ["Qwen2ForCausalLM"]
    assert CONFIG["num_attention_heads"] % 4 == 0
    assert CONFIG["num_key_value_heads"] % 2 == 0
    assert CONFIG["num_key_value_heads"] < CONFIG["num_attention_heads"]
    assert CONFIG["num_hidden_layers"] % 4 == 0
    assert CONFIG["vocab_size"] % 64 == 0
    assert not CONFIG["tie_word_embeddings"] and "lm_head.weight" in shapes()


def test_tokenizer_fits_the_model() -> None:
    special = json.loads((TINY / "tokenizer_config.json").read_text())
    assert TOKENIZER.get_vocab_size() == CONFIG["vocab_size"]
    for role in ("bos", "eos", "pad"):
        assert TOKENIZER.token_to_id(special[f"{role}_token"]) == CONFIG[f"{role}_token_id"]
    assert CONFIG["pad_token_id"] != CONFIG["eos_token_id"]


def test_every_byte_has_a_token() -> None:
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(TOKENIZER.get_vocab())


@pytest.mark.parametrize(
    "text",
    [
        "把 苹果 译成英文，从后往前。",
        "How many fruits?\n pear  lemon\n\n答/Answer: ",
        "café naïve Ελλάδα 𠮷野家",
        "🍎🐯👩🏽‍🚀",
        "\t mixed 中英 12345 \r\n",
        "".join(map(chr, range(0x300))),
        "".join(map(chr, range(0x4E00, 0x9FFF, 7))),
    ],
)
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_prompt_and_answer_stay_short() -> None:
    for line in task.PATH.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt = f"{row['instruction']}\n{row['input']}\n答/Answer: "
        assert len(TOKENIZER.encode(prompt).ids) + len(TOKENIZER.encode(row["output"] + EOS).ids) <= 40
