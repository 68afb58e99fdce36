"""Entry point under a launcher: `deepspeed --hostfile hostfiles/a100x8 bench/run.py`.

Also under torchrun, mpirun and Slurm, or alone for one rank. Rank 0 leads; the other ranks follow it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

# The launcher starts this file by path and sets no PYTHONPATH; left on the path, `bench/` itself would let
# our `records`, `report` … shadow other modules.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import click  # noqa: E402

from bench.errors import BenchError, SpecError  # noqa: E402
from bench.leader import Leader, Options, lead  # noqa: E402
from bench.records.environment import environment, environment_of, interpreter_of, query_gpus  # noqa: E402
from bench.records.runfolder import RunFolder  # noqa: E402
from bench.spec.paths import ROOT  # noqa: E402
from bench.spec.preflight import why_not  # noqa: E402
from bench.spec.suite import Suite, load_suite, parse_override  # noqa: E402
from bench.supervisor.contract import SessionInterrupted, SessionLost  # noqa: E402
from bench.supervisor.launch import Launch, check_hostfile, detect_launch  # noqa: E402

GPU_SUITE, CPU_SUITE = "qwen2.5-32b-a100x8", "tiny"
PRELOAD = (
    "torch", "deepspeed", "transformers", "peft", "datasets", "pandas", "bench.worker.main",
    "bench.worker.engines.zero", "bench.worker.verify",
)  # fmt: skip
"""Imported once per node by the server that forks the workers."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--suite", "suite_name", help="Name of a suite (python -m bench suites) or a YAML file.")
@click.option("--cases", help="Only cases whose id matches one of these comma-separated patterns, e.g. 'lora-*'.")
@click.option("--out", type=click.Path(path_type=Path), help="Results folder; default results/<suite>-<time>.")
@click.option("--resume", is_flag=True, help="Continue the run in --out: skip finished cases, redo broken ones.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Independent launches per case.")
@click.option("--interleave", is_flag=True, help="With --repeats: round by round over the cases.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="ENV",
    help="Run a second Python environment (its folder) in turn with this one, and compare.",
)
@click.option("--timeout", type=click.FloatRange(min=1), help="Seconds a case may take; replaces the suite's own.")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Replace a field in every case.")
@click.option("--force", is_flag=True, help="Run cases that the plan says cannot fit.")
@click.option("--list", "list_only", is_flag=True, help="List the cases and what speaks against them; run nothing.")
@click.option("--local_rank", type=int, hidden=True, help="Given by the deepspeed launcher; not used.")
def main(
    suite_name: str | None, cases: str | None, out: Path | None, resume: bool, repeats: int, interleave: bool,
    against: Path | None, timeout: float | None, overrides: tuple[str, ...], force: bool, list_only: bool,
    local_rank: int | None,
) -> None:  # fmt: skip
    """Run a suite on the ranks of this launch and write its report."""
    try:
        launch = detect_launch(os.environ)
        suite = _load(suite_name, cases, overrides, launch) if launch.rank == 0 else None
        if list_only:
            if suite:
                print_cases(suite, launch.world_size)
            return
        options = Options(repeats=repeats, interleave=interleave, force=force, timeout_s=timeout)
        code = run(launch, suite, out, resume, options, overrides, against)
    except SessionInterrupted as error:
        code = error.exit_code
    except BenchError as error:
        print(f"ftbench: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    sys.exit(code)


def run(
    launch: Launch,
    suite: Suite | None,
    out: Path | None,
    resume: bool,
    options: Options,
    overrides: tuple[str, ...],
    against: Path | None,
) -> int:
    """Lead or follow one session; returns the exit code."""
    from bench.supervisor.session import Session

    threads = set_environment(launch)
    with Session(launch, Path(tempfile.gettempdir()), preload=PRELOAD) as session:
        if not session.is_leader:
            session.follow()
            return 0
        print(f"ftbench: {check_hostfile(launch, session.hosts)}", flush=True)
        facts = _facts(launch, session, suite, options, overrides)
        folder = RunFolder.open(out, suite, resume, facts, environment(threads))
        where = ", ".join(f"{node.name}: {node.ranks} ranks" for node in session.hosts)
        print(
            f"ftbench: suite {suite.name}, {len(suite.cases)} cases × {options.repeats} on {where} "
            f"({folder.record.environment.device}) → {folder.path}",
            flush=True,
        )
        leaders = [Leader(session, folder, options)]
        if against is not None:
            python = interpreter_of(against)
            other = RunFolder.open(
                Path(f"{folder.path}-against"), suite, resume, facts, environment_of(python, threads)
            )
            # Both sides start afresh in their interpreter: nothing but the environment differs.
            leaders = [Leader(session, folder, options, Path(sys.executable)), Leader(session, other, options, python)]
        code = _lead(leaders)
    for leader in leaders:
        _report(leader.folder.path)
    if against is not None:
        print(f"ftbench: now: python -m bench compare {leaders[0].folder.path} {leaders[1].folder.path}")
    return code


def _lead(leaders: list[Leader]) -> int:
    """Run the suite; interruptions and full disks leave what is finished."""
    try:
        lead(leaders)
    except SessionInterrupted as error:
        print(f"ftbench: interrupted: {error}; finished cases are kept, continue with --resume", file=sys.stderr)
        return error.exit_code
    except (SessionLost, OSError) as error:
        print(f"ftbench: the run ends early: {error}; finished cases are kept, continue with --resume", file=sys.stderr)
        return 1
    return 0


def _load(name: str | None, cases: str | None, overrides: tuple[str, ...], launch: Launch) -> Suite:
    """The suite to run; refused where no case of it can start here."""
    if name is None:
        name = GPU_SUITE if query_gpus("name") else CPU_SUITE
        why = "this node has GPUs" if name == GPU_SUITE else "this node has no GPU"
        print(f"ftbench: no --suite given and {why}: taking {name}", flush=True)
    suite = load_suite(name, parse_override(overrides)).select(cases)
    reasons = [why_not(case, launch.world_size) for case in suite.cases]
    if all(reasons):
        raise SpecError(
            f"no case of {suite.name} can run on {launch.world_size} ranks; the first: "
            f"{suite.cases[0].id}: {reasons[0]}"
        )
    return suite


def print_cases(suite: Suite, world_size: int) -> None:
    """One line per case: id, strategy, batch, what speaks against it."""
    print(f"{suite.name}: {suite.description}")
    width = max(len(case.id) for case in suite.cases)
    for case in suite.cases:
        reason = why_not(case, world_size)
        sizes = (
            f"{case.tuning} {case.strategy} {case.precision}, batch {case.global_batch_size} "
            f"(micro {case.micro_batch_size}), seq {case.seq_len}, {case.steps} steps"
        )
        print(f"  {case.id:{width}}  {sizes}" + (f"  unsupported: {reason}" if reason else ""))


def _facts(launch: Launch, session: object, suite: Suite, options: Options, overrides: tuple[str, ...]) -> dict:
    return {
        "launcher": launch.launcher, "world_size": launch.world_size,
        "hosts": [node.name for node in session.hosts for _ in range(node.ranks)],
        "hostfile": os.path.relpath(launch.hostfile, ROOT) if launch.hostfile else None,
        "command": sys.argv, "overrides": parse_override(overrides),
        "repeats": options.repeats, "suite_text": Path(suite.source).read_text(encoding="utf-8"),
    }  # fmt: skip


def set_environment(launch: Launch) -> int:
    """Environment of the workers: threads shared among the node's ranks, own operator cache; returns the threads."""
    share = max(1, len(os.sched_getaffinity(0)) // launch.local_world_size)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
    # Waiting threads that spin take the cores from the ranks beside them: seen ten times slower on two cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Own folder: which ninja comes first decides whether a cache is reused, and a stale lock in a shared one hangs.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / "build" / "torch_extensions"))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return int(os.environ["OMP_NUM_THREADS"].split(",")[0])


def _report(path: Path) -> None:
    """Write the report; a failure to draw it never loses the run."""
    from bench.report.write import write_report

    try:
        for file in write_report(path):
            print(f"ftbench: wrote {file}")
    except (BenchError, OSError) as error:
        again = f"python -m bench report {path}"
        print(f"ftbench: the report could not be written ({error}); try: {again}", file=sys.stderr)


if __name__ == "__main__":
    main()
