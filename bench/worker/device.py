"""The device of one rank: choice, fence, process group, seeds."""

from __future__ import annotations

import datetime
import os
import random
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from bench.errors import UnsupportedCase
from bench.spec.case import Case

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Device:
    """The accelerator (or processor) this rank computes on."""

    torch: torch.device
    name: str
    """As the driver gives it."""

    @property
    def is_cuda(self) -> bool:
        """True on an accelerator whose allocator torch counts."""
        return self.torch.type == "cuda"

    def fence(self) -> None:
        """Wait until everything queued on the device is done, so that a clock read afterwards is true."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)


def pick_device() -> Device:
    """The local rank's GPU, or the CPU where there is none.

    Raises:
        UnsupportedCase: there are GPUs, but fewer than ranks on this node.
    """
    if not torch.cuda.is_available():
        return Device(torch.device("cpu"), "cpu")
    local_rank, visible = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= visible:
        raise UnsupportedCase(f"local rank {local_rank} has no GPU: {visible} visible on this node")
    torch.cuda.set_device(local_rank)
    return Device(torch.device("cuda", local_rank), torch.cuda.get_device_name(local_rank))


def check_precision(case: Case, device: Device) -> None:
    """Refuse a precision that the device would only emulate.

    Raises:
        UnsupportedCase: with the device and the precisions it computes natively.
    """
    if case.precision == "bf16" and device.is_cuda and torch.cuda.get_device_capability() < (8, 0):
        raise UnsupportedCase(f"{device.name} has no bf16 arithmetic; precisions it has: fp16, fp32")
    if case.precision == "fp16" and not device.is_cuda:
        raise UnsupportedCase("fp16 needs a GPU; precisions on this CPU: bf16, fp32")
    if case.attention == "flash_attention_2" and not device.is_cuda:
        raise UnsupportedCase("attention flash_attention_2 needs a GPU; on CPU: sdpa, eager")


def join_process_group(device: Device, timeout_s: float) -> None:
    """Meet the other workers of this case; every later collective is bounded by `timeout_s`."""
    # The CPU op would be compiled on first use, waits for ever on a stale lock, leaves shared memory
    # behind and brings no speed for these sizes. It must be off before deepspeed looks for it.
    import deepspeed.ops

    if not device.is_cuda:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group(
        "nccl" if device.is_cuda else "gloo",
        init_method="env://",
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device.torch if device.is_cuda else None,
    )
    deepspeed.init_distributed(dist_backend="nccl" if device.is_cuda else "gloo", verbose=False)


def seed_all(seed: int, rank: int) -> None:
    """Seed every generator; ranks differ, so that dropout masks do."""
    random.seed(seed + rank)
    torch.manual_seed(seed + rank)


def generator_for(name: str, seed: int, device: torch.device) -> torch.Generator:
    """A generator that depends on a parameter's name and the seed alone.

    The same weights are then drawn whatever the order of building or sharding (`zero.Init` around a
    plain random initialisation draws others).
    """
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()) ^ (seed << 20))
