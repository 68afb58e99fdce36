"""Where relative names in suites point to."""

from __future__ import annotations

from pathlib import Path

_FILES = (".json", ".jsonl", ".parquet", ".csv", ".yaml", ".safetensors")

ROOT = Path(__file__).resolve().parents[2]
"""The repository (or installation) that holds `bench/`."""


def local_path(name: str) -> Path | None:
    """Resolve a file or folder named in a suite.

    Args:
        name: absolute, or relative to the current folder, or else to the repository.

    Returns:
        The existing path, or None where the name is no local file (then it may be a hub name).
    """
    for base in (Path.cwd(), ROOT):
        path = base / Path(name).expanduser()
        if path.exists():
            return path.resolve()
    return None


def looks_local(name: str) -> bool:
    """Tell a path that does not exist from a hub name such as `org/model`."""
    ours = name.split("/")[0] in ("bench", "build")
    return ours or name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).suffix in _FILES
