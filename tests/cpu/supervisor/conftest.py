"""Fixtures of the supervisor's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launching import Launched


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "launcher(name): starts ranks through a real launcher")


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Makes launches whose processes are gone after the test, whatever it did."""
    made: list[Launched] = []

    def make(jobs: list[dict], **env: str) -> Launched:
        made.append(Launched(tmp_path / f"launch{len(made)}", jobs, **env))
        return made[-1]

    yield make
    for launch in made:
        launch.kill()
