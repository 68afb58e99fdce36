"""Seconds of one optimizer step: matrices, memory traffic, optimizer, communication, pipeline bubble.

A roofline model: matrix products run at the best rate that others measured, elementwise kernels at the
memory's bandwidth, and the two do not overlap on one stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.planner.job import FULL, Job
from bench.planner.parameters import count, stage_parameters, stages_of, trained_elements
from bench.spec.flops import TokenFlops, model_flops_per_token
from bench.spec.hardware import Gpu
from bench.spec.models import ModelShape

MATMUL_EFFICIENCY = 0.87
"""Of the best measured matrix rate, for the shapes of real layers. Full fine-tuning of Mistral-7B and Llama-3-8B in
public runs (fms-acceleration, one A100, fused kernels) leaves 0.85 to 0.9 once memory traffic is taken off."""
ATTENTION_OF_PEAK = {"Hopper": 0.35, "Blackwell": 0.3}
"""Share of the dense peak that FlashAttention-2 reaches, forward and backward together (arXiv:2407.08608, §1)."""
ATTENTION_OF_PEAK_BEFORE_HOPPER = 0.55
"""The same on Ampere and Ada, with a causal mask and 4k tokens (arXiv:2307.08691, figures 5 and 6)."""
MATMUL_OF_PEAK = 0.7
"""Of the data-sheet peak where nobody measured: 0.8 (H100 794.5 of 989, A100 PCIe 252.9 of 312) times the above."""
BANDWIDTH_EFFICIENCY = 0.85
"""Of the data-sheet bandwidth that long elementwise kernels reach (stream benchmarks: 0.8 to 0.9)."""
LINK_EFFICIENCY = 0.75
"""Of a link's one-way rate that NCCL's rings reach on large messages (nccl-tests' bus bandwidth)."""
OVERLAP = 0.7
"""Share of ZeRO's communication that hides behind computation when it is overlapped; an assumption."""
INTER_NODE_BYTES_PER_S = 25e9
"""One way per GPU between nodes: one 200 Gbit/s port a GPU; an assumption that the plan states."""
UNCERTAINTY = 0.15
"""Relative, for one node's data-parallel layouts; see `score-plan`."""
EXTRAPOLATED_UNCERTAINTY = 0.35
"""For several nodes, TP, PP, SP and offload, which no measurement backs."""
HOST_BANDWIDTH_BYTES_PER_S = 100e9
"""Host memory traffic of CPUAdam on one socket; an assumption."""


@dataclass(frozen=True)
class Speed:
    """Expected time of one optimizer step and its parts."""

    step_s: float
    matmul_s: float
    memory_bound_s: float
    optimizer_s: float
    communication_s: float
    """What is not hidden behind computation."""
    bubble_s: float
    samples_per_s: float
    tokens_per_s: float
    """Computed positions, padding included."""
    uncertainty: float
    """Relative: the rate lies within ± this."""
    flops: TokenFlops
    rate_source: str


def speed_of(job: Job, gpu: Gpu, gpus_per_node: int, extrapolated: bool) -> Speed:
    """Predict the time of one optimizer step.

    Args:
        job: the job.
        gpu: the device.
        gpus_per_node: beyond these the slower network counts.
        extrapolated: widen the uncertainty.
    """
    flops = model_flops_per_token(
        job.shape, job.seq_len, job.tuning, job.lora_rank, job.targets, job.gradient_checkpointing
    )
    rate, source = matmul_rate(gpu, job.precision.compute)
    tokens = job.tokens * job.accumulation
    # Each rank does its share of every token's work: TP splits the matrices, PP the blocks.
    share = 1 / (job.tp * job.pp)
    attention = _attention_flops(job)
    attention_rate = ATTENTION_OF_PEAK.get(gpu.architecture, ATTENTION_OF_PEAK_BEFORE_HOPPER) * gpu.half_flops
    if job.precision.compute == FULL:
        attention_rate = rate
    matmul = ((flops.hardware - attention) / rate + attention / attention_rate) * tokens * share
    bandwidth = gpu.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY
    traffic = elementwise_bytes_per_token(job) * tokens * share / bandwidth
    optimizer = _optimizer_s(job, bandwidth)
    busy = matmul + traffic
    communication = _communication_s(job, gpu, gpus_per_node, busy)
    micro_batches = job.accumulation
    bubble = busy * (job.pp - 1) / micro_batches if job.pp > 1 else 0.0
    step = busy + optimizer + communication + bubble
    samples = job.micro_batch * job.accumulation * job.dp
    wide = extrapolated or job.world_size > gpus_per_node
    return Speed(
        step_s=step, matmul_s=matmul, memory_bound_s=traffic, optimizer_s=optimizer,
        communication_s=communication, bubble_s=bubble, samples_per_s=samples / step,
        tokens_per_s=samples * job.seq_len / step,
        uncertainty=EXTRAPOLATED_UNCERTAINTY if wide else UNCERTAINTY, flops=flops, rate_source=source,
    )  # fmt: skip


def matmul_rate(gpu: Gpu, element: int) -> tuple[float, str]:
    """Achievable matrix rate in FLOP/s, and where it is from."""
    if element == FULL:
        return gpu.fp32_flops * MATMUL_OF_PEAK, f"{MATMUL_OF_PEAK} of the fp32 peak ({gpu.source})"
    if gpu.matmul_flops:
        return gpu.matmul_flops * MATMUL_EFFICIENCY, f"{MATMUL_EFFICIENCY} of the best measured ({gpu.matmul_source})"
    return gpu.half_flops * MATMUL_OF_PEAK, f"{MATMUL_OF_PEAK} of the data-sheet peak ({gpu.source})"


def _attention_flops(job: Job) -> float:
    """Operations of attention's two products per position, all passes; see `bench.spec.flops`."""
    passes = 3 + job.gradient_checkpointing
    return 2.0 * job.shape.layers * job.shape.q_dim * job.seq_len * passes


def elementwise_bytes_per_token(job: Job) -> float:
    """Memory traffic of everything that is no matrix product, per computed position, all blocks and the loss.

    Counted operator by operator for the eager blocks of transformers (e = bytes of the compute type): an
    RMSNorm upcasts, squares, averages, scales, rounds and weighs (4e + 28 bytes an element); rotary embedding
    multiplies, rotates, multiplies and adds (10e); the gated MLP 5e; two residual sums 3e each. Fused kernels read
    and write once. Backward moves about twice as much, recomputation once more. The loss is counted as twelve
    passes over fp32 logits.
    """
    shape, e = job.shape, job.precision.compute
    h, q, kv, inner = shape.hidden, shape.q_dim, shape.kv_dim, shape.intermediate
    norm = 2 * e if job.fused_kernels else 4 * e + 7 * FULL
    block = 2 * norm * h + 6 * e * h + (2 if job.fused_kernels else 10) * e * (q + kv)
    block += (3 if job.fused_kernels else 5) * e * inner
    if shape.qk_norm:
        block += norm * (q + kv)
    block += _adapter_traffic(job) if job.lora else 0
    passes = 3 + job.gradient_checkpointing
    return shape.layers * block * passes + 12 * FULL * shape.vocab


def _adapter_traffic(job: Job) -> float:
    """Forward bytes of a block's adapters: each reads its input (after a cast of its own, where it makes one), and
    writes, scales and adds an output as wide as its layer's."""
    e = job.precision.compute
    a = job.adapter_copy or e
    cast = e + a if job.adapter_copy > e else 0
    total = 0.0
    for name in job.shape.adapter_modules(job.targets):
        inputs, outputs = job.shape.linears[name]
        total += inputs * (a + cast + 2 * e * (job.lora_dropout > 0)) + outputs * (4 * a + 2 * e)
    return total


def _optimizer_s(job: Job, bandwidth: float) -> float:
    """Reads and writes of weights, gradients, masters and moments; bound by memory."""
    trained = max(trained_elements(job, stage) for stage in stages_of(job))
    share = job.shards if job.zero_stage >= 1 else 1
    precision = job.precision
    per_parameter = 2 * (precision.moments + precision.master) + 2 * precision.gradients + 2 * precision.compute
    # Clipping reads the gradients twice more; unfused steps pass over their temporaries again.
    per_parameter += 2 * FULL + (6 * FULL if job.optimizer != "fused" else 0)
    if job.offload_optimizer:
        return trained / share * per_parameter / HOST_BANDWIDTH_BYTES_PER_S
    return trained / share * per_parameter / bandwidth


def _communication_s(job: Job, gpu: Gpu, gpus_per_node: int, busy_s: float) -> float:
    """Seconds that communication adds to a step.

    Ring volumes per rank (n − 1)/n × bytes for a gather or a scatter, twice that for an all-reduce (Rajbhandari et
    al., arXiv:1910.02054, §7). ZeRO-3 gathers the weights for forward and for backward and scatters gradients in
    every micro-batch; ZeRO-2 scatters gradients in every micro-batch and gathers weights once; DDP, ZeRO-0 and 1
    reduce once. TP all-reduces two hidden states a block in forward, two in backward and two in recomputation
    (Megatron-LM, arXiv:1909.08053), in the open.
    """
    precision, shape = job.precision, job.shape
    parameters = [stage_parameters(job, stage) for stage in stages_of(job)]
    whole = max(count(p) for p in parameters) * precision.weights
    grads = max(trained_elements(job, stage) for stage in stages_of(job)) * precision.gradients
    local = job.world_size <= gpus_per_node
    link = (gpu.link_bytes_per_s if local else min(gpu.link_bytes_per_s, INTER_NODE_BYTES_PER_S)) * LINK_EFFICIENCY
    ring = (job.shards - 1) / job.shards
    if job.zero_stage == 3:
        volume = job.accumulation * ring * (2 * whole + grads)
    elif job.zero_stage == 2:
        volume = ring * (job.accumulation * grads + grads)
    else:
        volume = 2 * ring * grads
    data_parallel = volume / link
    hidden = min(data_parallel * OVERLAP, busy_s)
    tensor_link = gpu.link_bytes_per_s * LINK_EFFICIENCY
    states = job.tokens * shape.hidden * precision.compute * job.accumulation * shape.layers / job.pp
    times = 4 + 2 * job.gradient_checkpointing
    tensor_parallel = 2 * (job.tp - 1) / job.tp * states * times / tensor_link
    heads = job.tokens * 2 * (shape.q_dim + shape.kv_dim) * precision.compute * job.accumulation * shape.layers
    sequence_parallel = (job.sp - 1) / job.sp * heads * (times / 2) / tensor_link
    return data_parallel - hidden + tensor_parallel + sequence_parallel


def model_flops_utilisation(tokens_per_s: float, flops: TokenFlops, gpu: Gpu, world_size: int, precision: str) -> float:
    """Share of the devices' peak that model FLOPs take (MFU, PaLM appendix B)."""
    return tokens_per_s * flops.model / (gpu.peak_flops(precision) * world_size)


def checkpoint_bytes(shape: ModelShape, job: Job) -> int:
    """What one ships: all weights in the compute type, or the adapters alone."""
    if job.lora:
        return shape.lora_parameters(job.lora_rank, job.targets) * job.precision.adapters
    return round(shape.parameters * job.precision.compute)
