"""Bytes that the forward pass keeps for the backward pass, per token and decoder block.

Derived from what autograd saves in transformers' Qwen2, Qwen3, Llama and Mistral blocks, operator by
operator, and checked against storages seen on CPU. e = bytes of the compute type. Trained norms keep
their normalised input for the gradient of their weight; trained or adapted linear layers keep their input.

Full fine-tuning, bf16, flash attention: 16h + 4·q_dim + 4·kv_dim + 8I + 4·heads + 8 (20h + … where q_dim = h).
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.planner.job import FULL, Job


@dataclass(frozen=True)
class BlockBytes:
    """Per token of one block on one rank."""

    attention_part: float
    """Norms, projections' inputs, and what attention keeps."""
    mlp_part: float
    """What the gated MLP keeps, its input aside."""
    gate: float
    """A third of what silu and product keep: one tensor as wide as the MLP."""
    attention_backward: float
    """Temporaries at the widest moment of attention's backward pass."""
    behind_attention: float
    """Of `attention_part`, what is gone by then: the second norm and the MLP's input."""
    forward: float
    """Live in a block's forward pass when nothing is kept, as under checkpointing."""
    hidden: float
    """One hidden state: what checkpointing keeps, and the gradient that flows."""

    @property
    def saved(self) -> float:
        """All that is kept without checkpointing."""
        return self.attention_part + self.mlp_part

    @property
    def backward(self) -> tuple[tuple[str, float, float], ...]:
        """Moments that can be the widest of the block's backward pass: (place, kept activations, temporaries).

        First the down projection makes the gradients of its weight (`made`) and input, all being kept yet; when
        that of the weight is reduced (`down`), its input is gone. Behind it (`waiting`) the product's two factors
        and silu's input are kept, and the gradient of the product and the two that come from it exist. At the
        gate and up projections' own gradients (`mlp`) two of the kept three are gone, two gradients left; then
        `attention`. The gradient that flows is always there.
        """
        attention = self.attention_part
        return (
            ("made", attention + self.mlp_part, self.gate + self.hidden),
            ("down", attention + 3 * self.gate, self.gate + self.hidden),
            ("waiting", attention + 3 * self.gate, 3 * self.gate + self.hidden),
            ("mlp", attention + self.gate, 2 * self.gate + 2 * self.hidden),
            ("attention", attention - self.behind_attention, self.attention_backward + self.hidden),
        )

    @property
    def peak(self) -> float:
        """Widest moment of the block's backward pass, the incoming gradient included."""
        return max(kept + temporaries for _, kept, temporaries in self.backward)


def block_bytes(job: Job) -> BlockBytes:
    """Activation bytes per token of one block, by part."""
    shape, e = job.shape, job.precision.compute
    h, q, kv = shape.hidden, shape.q_dim / job.tp, shape.kv_dim / job.tp
    inner, heads = shape.intermediate / job.tp, shape.heads / job.tp
    trained = not job.lora
    # transformers' RMSNorm: fp32 input, its inverse root mean square, the rounded product for the weight.
    norm = FULL * h + FULL + trained * e * h
    norms = 2 * norm
    if shape.qk_norm:
        kv_heads = shape.kv_heads / job.tp
        norms += FULL * (q + kv + heads + kv_heads) + trained * e * (q + kv)
    inputs = _linear_inputs(job, h, q, inner)
    kept, attention_backward = _attention(job, q, kv, heads)
    # silu keeps its input; the product keeps both factors.
    gate = e * inner
    shared = trained or not (job.lora_dropout or job.adapter_copy)
    read_by_mlp = e * h if shared and (trained or {"gate_proj", "up_proj"} & set(_adapted(job))) else 0
    eager = job.attention == "eager"
    scores = (e + 2 * FULL) * heads * job.seq_len + e * 3 * q if eager else 0
    return BlockBytes(
        attention_part=norms + inputs["hidden"] + kept,
        mlp_part=3 * gate + inputs["down"],
        gate=gate,
        attention_backward=attention_backward,
        behind_attention=norm + read_by_mlp,
        # silu's output, up's and their product; an adapter's product is scaled and added beside up's own.
        forward=max(scores, 3 * gate + (gate - e * h if "up_proj" in _adapted(job) else 0)) + 2 * e * h,
        hidden=e * h,
    )


def _adapted(job: Job) -> tuple[str, ...]:
    return job.shape.adapter_modules(job.targets) if job.lora else ()


def _scattered(job: Job) -> float:
    """What a fused layer's adapters scatter into their columns of its output: `index_copy` keeps its source."""
    widths = {"q_proj": job.shape.q_dim, "k_proj": job.shape.kv_dim, "v_proj": job.shape.kv_dim}
    found = [width for name, width in widths.items() if name in _adapted(job)]
    # With all three adapted nothing is left to spread them over.
    return job.precision.compute * sum(found) if job.fused_qkv and len(found) < len(widths) else 0.0


def _linear_inputs(job: Job, h: float, q: float, inner: float) -> dict[str, float]:
    """Inputs kept by linear layers: {hidden: of q, k, v, o, gate and up; down: of down_proj}."""
    e, rank = job.precision.compute, job.lora_rank
    if not job.lora:
        return {"hidden": 2 * e * h, "down": e * inner}
    adapted = _adapted(job)
    inputs = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), h)
    inputs |= {"o_proj": q, "down_proj": inner}
    kept = {"hidden": _scattered(job), "down": 0.0}
    for name in adapted:
        if job.fused_qkv and name in ("k_proj", "v_proj") and "q_proj" in adapted:
            continue  # one adapter input serves the fused layer
        part = "down" if name == "down_proj" else "hidden"
        kept[part] += (job.adapter_copy or e) * rank
        if job.lora_dropout:
            kept[part] += (e + 1) * inputs[name]  # its own dropped-out copy, and the mask
        else:
            kept[part] += job.adapter_copy * inputs[name]
    if job.frozen_inputs_kept:
        return {"hidden": kept["hidden"] + 2 * e * h, "down": kept["down"] + e * inner}
    if not job.lora_dropout and not job.adapter_copy:
        # One copy serves every adapter that reads the same tensor; o_proj's is kept by attention anyway.
        kept["hidden"] += e * h * (any(n[0] in "qkv" for n in adapted) + any(n[0] in "gu" for n in adapted))
        kept["down"] += e * inner * ("down_proj" in adapted)
    return kept


def _attention(job: Job, q: float, kv: float, heads: float) -> tuple[float, float]:
    """(kept, widest temporaries of the backward pass) per token.

    Flash kernels keep query, key, value, output and one fp32 log-sum per head (FlashAttention,
    arXiv:2205.14135); backward makes the gradients of query, key, value, and accumulates that of query in fp32.
    The eager path repeats key and value to all heads and keeps the probabilities twice: fp32 out of the
    softmax, and rounded for the product. Backward ends with the softmax in fp32: its output, and two gradients.
    """
    e = job.precision.compute
    if job.attention == "eager":
        row = heads * job.seq_len
        repeated = 2 * e * q if job.shape.kv_heads < job.shape.heads else 2 * e * kv
        rounded = e * row if e < FULL else 0
        return e * 2 * q + repeated + rounded + FULL * row, 2 * FULL * row - rounded
    behind_value = e * (q + kv) if job.fused_qkv else 0
    return e * (2 * q + 2 * kv) + behind_value + FULL * heads, e * (q + 2 * kv) + FULL * q


def first_block_discount(job: Job) -> float:
    """Per token: a frozen embedding needs no gradient, so the first block's first norm keeps nothing."""
    return FULL * job.shape.hidden + FULL if job.lora else 0.0
