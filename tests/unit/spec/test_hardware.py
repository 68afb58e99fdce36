"""Accelerators: exact names, sources, refusals."""

from __future__ import annotations

import pytest

from bench.errors import SpecError
from bench.spec.hardware import all_gpus, gpu
from bench.units import GIB


def test_alias_stands_for_one_card() -> None:
    assert gpu("a100-80gb").name == "A100-SXM4-80GB"
    assert gpu("NVIDIA H200").name == "H200-SXM5-141GB"


@pytest.mark.parametrize("name", ["L4", "A100-32GB", "H100-32GB", "", "A10"])
def test_unknown_names_are_errors_that_list_the_known(name: str) -> None:
    with pytest.raises(SpecError, match=r"unknown; known: .*L40S-48GB"):
        gpu(name)


def test_family_name_is_ambiguous() -> None:
    with pytest.raises(SpecError, match=r"A100-SXM4-40GB, A100-PCIe-40GB, A100-SXM4-80GB"):
        gpu("a100")


def test_every_card_has_sources_and_less_memory_than_its_label() -> None:
    for card in all_gpus():
        assert card.source and card.usable_source and card.confidence in ("high", "medium", "low")
        assert 0.85 * card.memory_gb < card.usable_bytes / GIB < card.memory_gb
        assert card.matmul_flops is None or card.matmul_flops < card.half_flops
        assert card.link in ("nvlink", "pcie")


def test_no_bf16_before_ampere() -> None:
    with pytest.raises(SpecError, match=r"Volta has no bf16"):
        gpu("v100-32gb").peak_flops("bf16")
    assert gpu("v100-32gb").peak_flops("fp16") == 125e12
