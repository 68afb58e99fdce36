"""Accelerators: memory, rates and links, each with its source. Names match exactly; nothing is guessed."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from bench.errors import SpecError
from bench.units import GIB

CATALOGUE = Path(__file__).parent / "catalogue" / "gpus.csv"


@dataclass(frozen=True)
class Gpu:
    """One accelerator of the catalogue."""

    name: str
    memory_gb: float
    """Size on the label, in GB as vendors count."""
    usable_bytes: int
    """What the framework can see; less than the label."""
    usable_source: str
    architecture: str
    bf16: bool
    """bf16 matrix units in hardware; without them the device is refused for bf16."""
    half_flops: float
    """Dense fp16/bf16 matrix rate with fp32 accumulation, FLOP/s, without sparsity."""
    tf32_flops: float | None
    fp32_flops: float
    bandwidth_bytes_per_s: float
    """Of the device's memory."""
    link: str
    """`nvlink` (all to all) or `pcie`."""
    link_bytes_per_s: float
    """One direction, between two devices of a node: half of the vendor's two-way sum for NVLink."""
    matmul_flops: float | None
    """Highest matrix rate that others measured (ml-engineering's search), or None."""
    matmul_source: str
    source: str
    """Of the rates."""
    confidence: str
    """high, medium or low, for the rates."""

    def peak_flops(self, precision: str) -> float:
        """Dense peak of a precision (`bf16`, `fp16`, `fp32`), FLOP/s.

        Raises:
            SpecError: the device has no bf16 units.
        """
        if precision == "bf16" and not self.bf16:
            raise SpecError(f"gpu {self.name}: {self.architecture} has no bf16 matrix units; precision: fp16 or fp32")
        # torch multiplies fp32 matrices in fp32 unless TF32 is switched on, which the suite does not.
        return self.fp32_flops if precision == "fp32" else self.half_flops


def gpu(name: str) -> Gpu:
    """Find an accelerator by name, alias, or the name its driver gives; letter case does not count.

    Raises:
        SpecError: unknown or ambiguous name; the message lists the known ones with their aliases.
    """
    wanted = name.strip().lower()
    for entry, aliases in _catalogue():
        if wanted in (entry.name.lower(), *(alias.lower() for alias in aliases)):
            return entry
    family = [entry.name for entry, _ in _catalogue() if entry.name.lower().startswith(f"{wanted}-")]
    if wanted and family:
        raise SpecError(f"gpu {name!r} is ambiguous; there are: {', '.join(family)}")
    raise SpecError(f"gpu {name!r} is unknown; known: {known_gpus()}")


def known_gpus() -> str:
    """Names with their aliases, for messages and help."""
    listed = []
    for entry, aliases in _catalogue():
        short = [alias for alias in aliases if not alias.startswith(("NVIDIA", "Tesla"))]
        listed.append(entry.name + (f" ({', '.join(short)})" if short else ""))
    return ", ".join(listed)


def all_gpus() -> list[Gpu]:
    """The catalogue in its order."""
    return [entry for entry, _ in _catalogue()]


@functools.cache
def _catalogue() -> tuple[tuple[Gpu, tuple[str, ...]], ...]:
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        return tuple((_entry(row), tuple(filter(None, row["aliases"].split(";")))) for row in csv.DictReader(file))


def _entry(row: dict[str, str]) -> Gpu:
    def rate(key: str, unit: float) -> float | None:
        return float(row[key]) * unit if row[key] else None

    return Gpu(
        name=row["name"], memory_gb=float(row["memory_gb"]),
        usable_bytes=int(float(row["usable_gib"]) * GIB), usable_source=row["usable_source"],
        architecture=row["architecture"], bf16=row["bf16"] == "yes",
        half_flops=float(row["half_tflops"]) * 1e12, tf32_flops=rate("tf32_tflops", 1e12),
        fp32_flops=float(row["fp32_tflops"]) * 1e12,
        bandwidth_bytes_per_s=float(row["bandwidth_gb_per_s"]) * 1e9, link=row["link"],
        link_bytes_per_s=float(row["link_gb_per_s"]) * 1e9, matmul_flops=rate("matmul_tflops", 1e12),
        matmul_source=row["matmul_source"], source=row["source"], confidence=row["confidence"],
    )  # fmt: skip
