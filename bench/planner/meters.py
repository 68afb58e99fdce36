"""From tensors to the three numbers a GPU shows: allocated, reserved, device. Each is its own prediction."""

from __future__ import annotations

from dataclasses import dataclass

from bench.spec.hardware import Gpu
from bench.units import GIB, MIB

METERS = ("allocated", "reserved", "device")
ALLOCATED_MARGIN = 0.05
"""Relative margin of the allocated peak for layouts that were checked; see `score-plan`."""
EXTRAPOLATED_MARGIN = 0.15
"""The same for layouts that nobody measured (TP, PP, SP, offload)."""
RESERVED_RATIO = {False: (1.0, 1.12, 1.5), True: (1.0, 1.23, 1.55)}
"""Reserved over allocated on one rank and on several: least, expected, usual most. The caching allocator keeps
freed blocks. In 132 public fine-tuning runs (fms-acceleration, A100-80GB, driver's view less the context) the
median was 1.12 on one GPU and 1.23 on two, the ninth decile 1.5 and 1.55; it shrinks towards 1 as the device
fills, because the allocator gives cached blocks back before it fails."""
CONTEXT_BYTES = round(0.5 * GIB)
"""CUDA context with torch's kernels: 0.4 to 0.6 GiB from Ampere on, without module-lazy loading's savings."""
NCCL_BYTES_PER_COMMUNICATOR = 256 * MIB
"""NCCL's rings and protocol buffers: two to three dozen channels of 2 × 4 MiB and small change."""


@dataclass(frozen=True)
class Prediction:
    """Bytes by one meter, with the range the margin allows."""

    meter: str
    low: float
    expected: float
    high: float


ALLOCATOR_FILL = 0.94
"""Share of the free device that allocated tensors can fill before fragmentation makes an allocation fail. The
fullest public run that ended held 94.5 % of an A100 (74.80 of 79.15 GiB); runs expected at 94.3 % of what the
context leaves failed. A verdict within 5 % of the device is a close call, and says so."""


def workspace_bytes(gpu: Gpu) -> int:
    """cuBLAS workspace that torch allocates: 4096 KiB × 2 + 16 KiB × 8, from Hopper on 4096 KiB × 8.

    Source: `parseChosenWorkspaceSize` in torch's CUDABlas; it is counted as allocated.
    """
    return 32 * MIB if gpu.architecture in ("Hopper", "Blackwell") else 8 * MIB + 128 * 1024


def communicators(dp: int, tp: int, pp: int, sp: int) -> int:
    """Process groups with more than one rank that carry traffic; the world's own is the data-parallel one's."""
    return sum(size > 1 for size in (dp, tp, pp, sp))


def predict_meters(
    tensor_bytes: float, gpu: Gpu, n_communicators: int, extrapolated: bool, unseen_bytes: float = 0.0
) -> dict[str, Prediction]:
    """Predict the three meters from the bytes of live tensors.

    Args:
        tensor_bytes: peak of the tally.
        gpu: the device.
        n_communicators: NCCL communicators.
        extrapolated: the layout was never checked against measurements.
        unseen_bytes: what may live inside a kernel at the peak; widens the upper bounds.
    """
    margin = EXTRAPOLATED_MARGIN if extrapolated else ALLOCATED_MARGIN
    allocated = tensor_bytes + workspace_bytes(gpu)
    low, high = allocated * (1 - margin), allocated * (1 + margin) + unseen_bytes
    fixed = fixed_bytes(n_communicators)
    room = max(gpu.usable_bytes - fixed, high)
    least, usual, most = RESERVED_RATIO[n_communicators > 0]
    reserved = Prediction("reserved", low * least, min(allocated * usual, room), max(high, min(high * most, room)))
    return {
        "allocated": Prediction("allocated", low, allocated, high),
        "reserved": reserved,
        "device": Prediction("device", *(b + fixed for b in (reserved.low, reserved.expected, reserved.high))),
    }


def fixed_bytes(n_communicators: int) -> int:
    """On the device but outside of the allocator: context and NCCL."""
    return CONTEXT_BYTES + n_communicators * NCCL_BYTES_PER_COMMUNICATOR


def available_bytes(gpu: Gpu, n_communicators: int) -> int:
    """What allocated tensors may fill: a job fits where its allocated peak does."""
    return round((gpu.usable_bytes - fixed_bytes(n_communicators)) * ALLOCATOR_FILL)
