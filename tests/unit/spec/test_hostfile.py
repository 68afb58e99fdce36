"""Hostfiles are read strictly: what the launcher would misread is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import SpecError
from bench.spec.hostfile import Host, parse_hostfile

_ROOT = Path(__file__).resolve().parents[3]


def _write(folder: Path, text: str) -> Path:
    path = folder / "hosts"
    path.write_bytes(text.encode())
    return path


def test_accepts_comments_blanks_indentation_tabs_and_crlf(tmp_path: Path) -> None:
    path = _write(tmp_path, "# ours\r\n\r\n  node-1\tslots=8 # A100\r\n10.0.0.2   slots=4\r\n")
    assert parse_hostfile(path) == [Host("node-1", 8, 3), Host("10.0.0.2", 4, 4)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a slots = 2", "not a host line"),
        ("a", "not a host line"),
        ("a slots=", "not a host line"),
        ("a slots=8x", "not a host line"),
        ("a slots=8.5", "not a host line"),
        ("a slots=8;", "not a host line"),
        ("a slots=-1", "not a host line"),
        ("a slots=8 max_slots=9", "not a host line"),
        ("a slots=٢", "not a host line"),
        ("a:slots=2", "not a host line"),
        ("a slots=0", "slots=0 for a"),
        ("a slots=4096", "slots=4096 for a"),
        ("a;b slots=2", "characters no host name has"),
        ("\ufeffa slots=2", "characters no host name has"),
    ],
)
def test_refuses_what_the_launcher_misreads(tmp_path: Path, line: str, says: str) -> None:
    path = _write(tmp_path, f"# first\n{line}\n")
    with pytest.raises(SpecError) as caught:
        parse_hostfile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: ") and says in message and "HOST slots=N" in message


def test_refuses_a_host_twice(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"hosts:3: host a already stands on line 1"):
        parse_hostfile(_write(tmp_path, "a slots=1\nb slots=1\na slots=2\n"))


@pytest.mark.parametrize("text", ["", "# only a comment\n\n"])
def test_refuses_a_file_without_hosts(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match="names no host"):
        parse_hostfile(_write(tmp_path, text))


def test_refuses_what_is_no_text_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such hostfile"):
        parse_hostfile(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="not a readable text file"):
        parse_hostfile(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not a readable text file"):
        parse_hostfile(tmp_path / "binary")


@pytest.mark.parametrize(("name", "ranks"), [("a100x8", 8), ("cpu2", 2), ("two-nodes", 16)])
def test_shipped_hostfiles_are_well_formed(name: str, ranks: int) -> None:
    assert sum(host.slots for host in parse_hostfile(_ROOT / "hostfiles" / name)) == ranks
