"""Two sets of 10,000 results: how long does `bench compare` take, and how much memory?

    python -m benchmarks.compare_scale [--ranks 2]

Writes 2,000 cases × 5 launches and 10,000 cases × 1 launch to a temporary folder, compares each with everything on
(figures too), and prints wall time, processor time and the peak resident set of the largest process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.unit.factories import make_case, make_record, make_run

SHAPES = ((2000, 5), (10_000, 1))


def write_set(root: Path, cases: int, launches: int, ranks: int, seed: int, slower: bool) -> Path:
    """One results folder from one record, with its times replaced; a twentieth of the cases may be 10 % slower."""
    rng = np.random.default_rng(seed)
    raw = make_record(make_case("x"), gpu=True, world_size=ranks).model_dump(mode="json")
    ids = [f"case-{i:05d}-full-zero2-b8-s512" for i in range(cases)]
    root.mkdir(parents=True)
    run = make_run(ids, gpu=True, repeats=launches).model_dump(mode="json")
    (root / "run.json").write_text(json.dumps(run), encoding="utf-8")
    for i, case in enumerate(ids):
        raw["case"]["id"] = case
        for repeat in range(1, launches + 1):
            step = 0.1 * (1 + i % 7) * float(np.exp(0.03 * rng.standard_normal()))
            step *= 1.1 if slower and i % 20 == 0 else 1
            raw["repeat"] = repeat
            raw["timed"] |= {"step_s": [step] * raw["timed"]["steps"], "window_s": step * raw["timed"]["steps"]}
            folder = root / "cases" / case / f"r{repeat}"
            folder.mkdir(parents=True)
            (folder / "case.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    return root


def main() -> None:
    """Write, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    for cases, launches in SHAPES:
        with tempfile.TemporaryDirectory() as scratch:
            sides = [write_set(Path(scratch) / n, cases, launches, options.ranks, i, n == "new")
                     for i, n in enumerate(("old", "new"))]  # fmt: skip
            size = next(sides[0].glob("cases/*/r1/case.json")).stat().st_size
            command = [sys.executable, "-m", "bench", "compare", *map(str, sides), "--out", f"{scratch}/out"]
            for _ in range(options.tries):
                start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                wall, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
                verdict = re.search(r"Exit code \d", done.stdout)
                print(f"2 × {cases:,} cases × {launches} launches, {size:,} bytes each: {wall:.1f} s wall, "
                      f"{seconds:.1f} s of processor, {now.ru_maxrss / 1000:.0f} MB peak; load "
                      f"{os.getloadavg()[0]:.1f}; {verdict.group() if verdict else done.stderr}")  # fmt: skip


if __name__ == "__main__":
    main()
