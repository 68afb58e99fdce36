"""One progress line on the leader: case, phase, time left."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from bench.analysis import derive
from bench.records.schema import CaseRecord
from bench.spec.case import Case
from bench.units import gib, seconds


class Progress:
    """A bar over the cases, with a line for each case that ended."""

    def __init__(self, total: int) -> None:
        live = sys.stderr.isatty()
        self._bar = tqdm(
            total=total, unit="case", file=sys.stderr, disable=not live, dynamic_ncols=True,
            bar_format="{desc} |{bar:20}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}] {postfix}",
        )  # fmt: skip
        self._total, self._done, self._start = total, 0, time.monotonic()
        self._label = ""

    def begin(self, case: Case, repeat: int, side: str = "") -> None:
        """A case starts; `side` tells apart two environments that take turns."""
        self._label = f"{side} {case.id}".strip() + (f" (launch {repeat})" if repeat > 1 else "")
        self._bar.set_description(self._label)

    def poll(self, phases: dict[int, str]) -> None:
        """Called about once a second with the phases that are known."""
        self._bar.set_postfix_str(phases[min(phases)] if phases else "starting", refresh=True)

    def end(self, record: CaseRecord) -> None:
        """A case ended: print what it gave, and the time left at the mean pace so far."""
        self._done += 1
        elapsed = time.monotonic() - self._start
        left = elapsed / self._done * (self._total - self._done)
        eta = f", about {seconds(left)} left" if self._done < self._total else ""
        line = f"[{self._done}/{self._total}] {self._label}: {_outcome(record)} ({seconds(record.wall_s)}{eta})"
        self._bar.update(1)
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leave the terminal in order."""
        self._bar.close()


def _outcome(record: CaseRecord) -> str:
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    facts = []
    speed, peak = derive.samples_per_s(record), derive.peak_bytes(record)
    accuracy = derive.exact_match(record.evaluation.get("after"))
    if speed is not None:
        facts.append(f"{speed:.3g} samples/s")
    if peak is not None:
        facts.append(f"{gib(peak)} ({derive.main_meter(record)}, fullest rank)")
    if accuracy is not None:
        facts.append(f"exact match {accuracy:.1%}")
    return "ok, " + ", ".join(facts)
