"""Moves files from a rank to rank 0 through the store, so that no shared file system is needed."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench import jobfolder
from bench.supervisor.board import Attend, Board

PIECE_BYTES = 4 * 2**20
"""Half of what a TCPStore accepts in one value."""
_AHEAD = 4
"""Pieces that may lie in rank 0's memory before it has taken them."""
PARTIAL = ".ftbench-part"
"""Ending of a file that is not yet whole on rank 0."""


@dataclass(frozen=True)
class Parcel:
    """What one rank sends after a job."""

    files: tuple[tuple[str, int], ...]
    """(path below the rank's folder, size in bytes), in the order of sending."""
    left: tuple[str, ...]
    """What is not sent, each with the reason."""

    def to_json(self) -> str:
        """Returns the parcel's list as JSON."""
        return json.dumps({"files": self.files, "left": self.left})

    @classmethod
    def from_json(cls, text: str | bytes) -> Parcel:
        """Reads what `to_json` wrote."""
        fields = json.loads(text)
        return cls(tuple((path, size) for path, size in fields["files"]), tuple(fields["left"]))


def pack(job_dir: Path, limit_bytes: int) -> Parcel:
    """Lists the log and everything below out/, the log first and then small files first."""
    found, left = [], []
    for path in sorted(jobfolder.out_folder(job_dir).rglob("*")):
        name = path.relative_to(jobfolder.out_folder(job_dir)).as_posix()
        mode = path.lstat()
        if stat.S_ISDIR(mode.st_mode):
            continue
        if not stat.S_ISREG(mode.st_mode) or name == jobfolder.LOG_FILE:
            kind = "reserved name" if name == jobfolder.LOG_FILE else "not a plain file"
            left.append(f"{name} ({kind})")
            continue
        found.append((name, mode.st_size))
    found.sort(key=lambda entry: (entry[1], entry[0]))
    log = job_dir / jobfolder.LOG_FILE
    if log.is_file():
        found.insert(0, (jobfolder.LOG_FILE, log.stat().st_size))
    files, total = [], 0
    for name, size in found:
        if total + size > limit_bytes:
            left.append(f"{name} ({size} bytes would pass the limit of {limit_bytes} bytes per rank)")
            continue
        total += size
        files.append((name, size))
    return Parcel(tuple(files), tuple(left))


def source_path(job_dir: Path, name: str) -> Path:
    """Returns where a parcel's file lies on the sending rank."""
    return job_dir / name if name == jobfolder.LOG_FILE else jobfolder.out_folder(job_dir) / name


def send(board: Board, key: str, job_dir: Path, parcel: Parcel, attend: Attend, idle_s: float) -> bool:
    """Offers the parcel and its pieces; returns False when rank 0 stopped taking them.

    Args:
        board: The session's board.
        key: Prefix of this parcel's keys.
        job_dir: The sending rank's job folder.
        parcel: From `pack`.
        attend: Called while waiting.
        idle_s: Give up when no piece was taken for so long.
    """
    board.put(f"{key}/list", parcel.to_json())
    for index, piece in enumerate(_pieces(job_dir, parcel)):
        # Piece n may only be there once rank 0 has taken piece n - _AHEAD.
        if index >= _AHEAD and board.wait(f"{key}/taken/{index - _AHEAD}", idle_s, attend) is None:
            return False
        attend()
        board.put(f"{key}/piece/{index}", piece)
    return True


def _pieces(job_dir: Path, parcel: Parcel) -> Iterator[bytes]:
    for name, size in parcel.files:
        with source_path(job_dir, name).open("rb") as file:
            for offset in range(0, size, PIECE_BYTES):
                want = min(PIECE_BYTES, size - offset)
                # A file that shrank meanwhile is padded, so that the pieces stay in step.
                yield file.read(want).ljust(want, b"\0")


def receive(board: Board, key: str, target: Path, attend: Attend, idle_s: float) -> tuple[str, ...]:
    """Takes a parcel into `target`; returns what is missing, each with the reason."""
    listed = board.wait(f"{key}/list", idle_s, attend)
    if listed is None:
        return (f"all files (the rank sent no list within {idle_s:g} s)",)
    parcel = Parcel.from_json(listed)
    target.mkdir(parents=True, exist_ok=True)
    missing, index, broken = list(parcel.left), 0, ""
    for name, size in parcel.files:
        count = -(-size // PIECE_BYTES)
        if not broken and _is_safe(name):
            broken = _take_file(board, key, target / name, range(index, index + count), attend, idle_s)
            if broken:
                missing.append(f"{name} ({broken})")
        else:
            missing.append(f"{name} ({broken or 'unsafe path'})")
            broken = broken or "a file before it had an unsafe path"
        index += count
    board.remove(f"{key}/list")
    return tuple(missing)


def _take_file(board: Board, key: str, path: Path, indices: range, attend: Attend, idle_s: float) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        for index in indices:
            piece = board.wait(f"{key}/piece/{index}", idle_s, attend)
            if piece is None:
                partial.unlink()
                return f"no piece came for {idle_s:g} s"
            file.write(piece)
            board.remove(f"{key}/piece/{index}")
            board.put(f"{key}/taken/{index}", "1")
            if index >= _AHEAD:
                board.remove(f"{key}/taken/{index - _AHEAD}")
    partial.replace(path)
    return ""


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def wait_until_taken(board: Board, key: str, attend: Attend, idle_s: float) -> None:
    """Waits until rank 0 has taken a parcel's list away, so that the next job finds a quiet store."""
    deadline = time.monotonic() + idle_s
    while board.peek(f"{key}/list") is not None and time.monotonic() < deadline:
        attend()
        time.sleep(0.01)
