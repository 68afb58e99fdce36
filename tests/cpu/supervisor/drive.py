"""What the tests launch: leads a session through a list of jobs and writes each end to a file.

drive.py FOLDER          FOLDER/jobs.json (rank 0 only): [job fields, …]
                         FOLDER/ends.jsonl: one line per job, then {"closed": …}
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

# As bench/run.py must: the launchers set no PYTHONPATH, and put the script's folder first.
sys.path[0] = str(Path(__file__).resolve().parents[3])
sys.path.insert(1, str(Path(__file__).resolve().parent))

from bench.errors import BenchError  # noqa: E402
from bench.supervisor.launch import check_hostfile, detect_launch  # noqa: E402
from bench.supervisor.session import Job, Limits, Session, SessionInterrupted  # noqa: E402


def _note(folder: Path, entry: dict) -> None:
    with (folder / "ends.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _lead(session: Session, folder: Path) -> None:
    print(check_hostfile(session.launch, session.hosts), flush=True)
    (folder / "supervisors").write_text(json.dumps([seat.pid for seat in session._roster.seats]))
    for fields in json.loads((folder / "jobs.json").read_text()):
        seen: list[dict] = []
        end = session.run(Job(**fields), on_poll=seen.append)
        files = {}
        for path in sorted(end.files.rglob("*")):
            if path.is_file():
                text = path.read_text() if path.stat().st_size < 100_000 else f"{path.stat().st_size} bytes"
                files[path.relative_to(end.files).as_posix()] = text
        _note(folder, {**dataclasses.asdict(end), "files": files, "polled": seen[-1:]})


def main() -> int:
    """Runs one rank."""
    folder = Path(next(word for word in sys.argv[1:] if not word.startswith("-")))
    limits = Limits(**json.loads(os.environ.get("DRIVE_LIMITS", "{}")))
    preload = tuple(filter(None, os.environ.get("DRIVE_PRELOAD", "").split(",")))
    leads = False
    try:
        with Session(detect_launch(os.environ), folder / "scratch", preload, limits=limits) as session:
            leads = session.is_leader
            if leads:
                _lead(session, folder)
            else:
                session.follow()
    except SessionInterrupted as stop:
        if leads:
            _note(folder, {"closed": f"interrupted: {stop}"})
        return stop.exit_code
    except BenchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    if leads:
        _note(folder, {"closed": "in good order"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
