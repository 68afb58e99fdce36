"""Strict reading of DeepSpeed hostfiles.

The launcher's own parser (deepspeed/launcher/runner.py, `^(\\S+)\\s+slots=(\\d+)`) takes a prefix of what it
does not understand: `slots=8x` and `slots=8.5` are 8 to it, `slots=0` is a host without ranks. What it
reads otherwise than a person would is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bench.errors import SpecError

_LINE = re.compile(r"(?P<name>\S+)[ \t]+slots=(?P<slots>[0-9]+)")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.:%-]*[A-Za-z0-9_])?")
_ACCEPTED = "accepted is one `HOST slots=N` a line, N from 1 to 1024 without spaces around '=', and # comments"
_MAX_SLOTS = 1024


@dataclass(frozen=True)
class Host:
    """One line of a hostfile."""

    name: str
    """Host name or address, as written."""
    slots: int
    """Ranks on this host."""
    line: int
    """Line number in the file, from 1."""


def parse_hostfile(path: Path | str) -> list[Host]:
    """Reads a hostfile.

    Args:
        path: File with lines `HOST slots=N`; blank lines, indentation and # comments are fine.

    Returns:
        The hosts in the file's order, at least one.

    Raises:
        SpecError: The file is missing, not text, empty, or a line is not exactly as accepted.
    """
    path = Path(path)
    try:
        # utf-8, not utf-8-sig: the launcher would take a byte order mark for part of the host's name.
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(f"{path}: no such hostfile") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not a readable text file ({error})") from error
    hosts: list[Host] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        content = raw.partition("#")[0].strip()
        if content:
            hosts.append(_parse_line(f"{path}:{number}", content, number, hosts))
    if not hosts:
        raise SpecError(f"{path}: names no host; {_ACCEPTED}")
    return hosts


def _parse_line(where: str, content: str, number: int, earlier: list[Host]) -> Host:
    match = _LINE.fullmatch(content)
    if match is None:
        raise SpecError(f"{where}: {content!r} is not a host line; {_ACCEPTED}")
    name, slots = match["name"], int(match["slots"])
    if not _NAME.fullmatch(name):
        raise SpecError(f"{where}: host name {name!r} has characters no host name has; {_ACCEPTED}")
    if not 1 <= slots <= _MAX_SLOTS:
        raise SpecError(f"{where}: slots={match['slots']} for {name}; {_ACCEPTED}")
    twin = next((host for host in earlier if host.name == name), None)
    if twin is not None:
        raise SpecError(f"{where}: host {name} already stands on line {twin.line}; give all its slots there")
    return Host(name, slots, number)
