"""Wall time and peak memory of each phase, by counters that cost nothing while the phase runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from bench.records.memory import PhaseMemory
from bench.worker.device import Device

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Meters:
    """Collects `phases_s` and `memory` of one rank."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.phases_s: dict[str, float] = {}
        self.memory: dict[str, PhaseMemory] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase; it is kept also where the phase fails, so that a failure can be placed."""
        self.device.fence()
        _reset_peaks(self.device)
        start = time.perf_counter()
        try:
            yield
            self.device.fence()
        finally:
            self.phases_s[name] = time.perf_counter() - start
            self.memory[name] = _read_peaks(self.device)


def _reset_peaks(device: Device) -> None:
    if device.is_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch)
    with suppress(OSError):
        _CLEAR_REFS.write_text("5")  # resets VmHWM; proc(5)


def _read_peaks(device: Device) -> PhaseMemory:
    if not device.is_cuda:
        return PhaseMemory(
            allocated_peak_bytes=None, reserved_peak_bytes=None, device_used_bytes=None,
            resident_peak_bytes=resident_peak_bytes(),
        )  # fmt: skip
    free, total = torch.cuda.mem_get_info(device.torch)
    return PhaseMemory(
        allocated_peak_bytes=torch.cuda.max_memory_allocated(device.torch),
        reserved_peak_bytes=torch.cuda.max_memory_reserved(device.torch),
        device_used_bytes=total - free,
        resident_peak_bytes=resident_peak_bytes(),
    )


def resident_peak_bytes() -> int | None:
    """Peak resident set of this process since the last reset; None where the kernel does not tell."""
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match.group(1)) * 1024 if match else None
