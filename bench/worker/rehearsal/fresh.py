"""Rehearsals in fresh processes, a few at a time. Imports no torch: the processes do.

An engine leaves global state behind, so that each rehearsal has its own process; a fork server imports the
libraries once for all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from bench.errors import BenchError
from bench.records.folder import write_atomic
from bench.records.memory import MemoryPass
from bench.spec.case import Case

_PLAYED = "bench.worker.rehearsal.play"
_RESULT, _LOG = "memory_pass.json", "log"
_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
"""Of the fork server: a rehearsal is the same on every machine, with a GPU or without."""
_NO_MATTER = {
    "id": "rehearsal", "data": "none", "data_split": "train", "fill": True, "steps": 1, "warmup_steps": 0,
    "learning_rate": 1e-5, "lr_schedule": "constant", "lr_warmup_steps": 0, "loader_workers": 0, "prefetch": 2,
    "pin_memory": False, "seed": 0, "eval_samples": 0, "eval_batch_size": 1, "save_checkpoint": False,
    "keep_checkpoint": False, "memory_steps": 1, "timeout_s": 1.0,
}  # fmt: skip
"""Fields that change no storage of a training step."""


@dataclass(frozen=True)
class Part:
    """One rank of one case."""

    case: Case
    world_size: int
    rank: int

    @classmethod
    def of(cls, case: Case, world_size: int, rank: int) -> Part:
        """The part, less what its memory does not depend on; equal parts need be played once.

        Gradients of earlier micro-batches are there from the second one on; a pipeline holds at most as many
        micro-batches as it has stages, and goes on steadily after one more. (The token ids that it keeps of those
        left out, 16 bytes a token, are not counted.)
        """
        accumulation = case.accumulation_steps(world_size)
        enough = min(accumulation, 2 if case.pp_size == 1 else case.pp_size + 1)
        batch = case.global_batch_size // accumulation * enough
        return cls(case.model_copy(update={**_NO_MATTER, "global_batch_size": batch}), world_size, rank)

    @property
    def key(self) -> str:
        """Equal for equal parts."""
        return f"{self.world_size} {self.rank} {self.case.model_dump_json()}"


def play_all(parts: Sequence[Part], workers: int, timeout_s: float, on_end: Callable[[Part], None]) -> list[MemoryPass]:
    """Play parts, equal ones once.

    Args:
        parts: what to play.
        workers: processes at a time.
        timeout_s: longest life of one of them.
        on_end: told of every part that has ended.

    Returns:
        One memory pass a part, in order; status `crashed`, or `skipped` where the worker refuses it, with a reason.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PLAYED])
    waiting = list({part.key: part for part in parts}.values())[::-1]
    done: dict[str, MemoryPass] = {}
    with _environment(), tempfile.TemporaryDirectory(prefix="ftbench-rehearsals-") as folder:
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_Running(context, waiting.pop(), Path(folder), timeout_s))
                wait([one.process.sentinel for one in running], timeout=1.0)
                for one in [one for one in running if one.ended()]:
                    running.remove(one)
                    done[one.part.key] = one.result()
                    on_end(one.part)
        finally:
            for one in running:
                one.process.kill()
    return [done[part.key] for part in parts]


@contextmanager
def _environment() -> Iterator[None]:
    """For as long as processes are started; what this process starts besides must still find its GPUs."""
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Running:
    """One process and what it leaves."""

    def __init__(self, context: object, part: Part, folder: Path, timeout_s: float) -> None:
        self.part, self.began, self.timeout_s = part, time.monotonic(), timeout_s
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.process = context.Process(target=_play, args=(part, self.folder), daemon=True)
        self.process.start()
        self.timed_out = False

    def ended(self) -> bool:
        """Whether the process has ended; one that is overdue is killed."""
        if self.process.is_alive() and time.monotonic() - self.began > self.timeout_s:
            self.timed_out = True
            self.process.kill()
            self.process.join(10)
        return not self.process.is_alive()

    def result(self) -> MemoryPass:
        """What it found, or why not."""
        if self.timed_out:
            return MemoryPass(status="crashed", reason=f"the rehearsal took longer than {self.timeout_s:g} s")
        with suppress(FileNotFoundError):
            return MemoryPass.model_validate_json((self.folder / _RESULT).read_text(encoding="utf-8"))
        tail = "no output"
        with suppress(FileNotFoundError):
            tail = " | ".join((self.folder / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
        code = self.process.exitcode
        how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        return MemoryPass(status="crashed", reason=f"the process ended with {how}: {tail}"[:500])


def _play(part: Part, folder: Path) -> None:
    """In the fresh process: play, and write what was found. Whatever libraries print goes to a log."""
    with (folder / _LOG).open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            from bench.worker.rehearsal.play import rehearse

            result = rehearse(part.case, part.world_size, part.rank)
        except BenchError as error:
            result = MemoryPass(status="skipped", reason=str(error)[:500])
        except Exception as error:
            traceback.print_exc()
            result = MemoryPass(status="crashed", reason=f"{type(error).__name__}: {error}"[:500])
        write_atomic(folder / _RESULT, result.model_dump_json(), durable=False)
