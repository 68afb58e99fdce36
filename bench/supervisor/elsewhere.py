"""Runs a job's function in another Python environment: the forked worker becomes that interpreter."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bench import jobfolder
from bench.spec.paths import ROOT
from bench.supervisor.contract import Job

_REQUEST = "elsewhere.json"


def moved(job: Job, python: Path) -> Job:
    """The same job for another interpreter.

    Args:
        job: what to run.
        python: interpreter of an environment that has this project's dependencies.
    """
    payload = {**job.payload, "elsewhere": {"python": str(python), "entry": job.entry}}
    entry = f"{__name__}:run"
    return Job(job.name, entry, payload, job.timeout_s, job.ranks, job.env)


def run(job_dir: Path) -> None:
    """Worker entry: replace this process. Its pid, group, log and death signal stay as they are."""
    there = jobfolder.read_job(job_dir)["elsewhere"]
    request = {"entry": there["entry"], "job_dir": str(job_dir), "sys_path": None, "parent": os.getppid()}
    path = Path(job_dir) / _REQUEST
    path.write_text(json.dumps(request), encoding="utf-8")
    python = there["python"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    os.execve(python, [python, "-m", "bench.supervisor.worker_main", str(path)], environment)
