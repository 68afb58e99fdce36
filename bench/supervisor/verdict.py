"""How a worker ended, and which rank is to blame: pure functions."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.supervisor.contract import RankEnd, name_signal

_SECONDARY = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe|ncclremoteerror"
    r"|remote (process|peer|side)|socket timeout|distnetworkerror|diststoreerror|disterror|recvvalue failed"
    r"|failed to (recv|send)|timed out (waiting|after|initializing)|watchdog caught collective"
    r"|nccl communicator was aborted|gloo.*(connect|transport|timed out)",
    re.IGNORECASE,
)
"""What a rank says when a peer has vanished: an effect, not a cause, if any rank has a cause of its own."""

ASKED_TO_STOP = (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)


@dataclass(frozen=True)
class Exit:
    """What is known about a worker's process when it is gone."""

    exit_code: int | None = None
    """Exit code, or None."""
    signal: int | None = None
    """Signal that ended it, or None."""
    done: bool = False
    """The job's function had returned."""
    failure: dict[str, Any] | None = None
    """What the worker itself wrote about its failure, if it did before it was asked to stop."""
    oom_kills: int = 0
    """By how much the control group's count of out-of-memory kills has grown."""
    stopped_because: str = ""
    """Set when the supervisor asked for the worker's end before it came."""
    never_started: str = ""
    """Why no process came to be."""


def judge_exit(end: Exit) -> tuple[str, str, str]:
    """Returns (status, reason, note) of one rank's worker."""
    if end.never_started:
        return "crashed", f"no worker process: {end.never_started}", ""
    if end.done:
        # The results are whole; how the interpreter went down afterwards does not take them back.
        return "ok", "", "" if end.exit_code == 0 else f"{_how(end)} after the job's function had returned"
    if end.failure is not None:
        return end.failure["status"], end.failure["reason"], ""
    if end.stopped_because:
        return "stopped", end.stopped_because, ""
    if end.signal == signals.SIGKILL and end.oom_kills > 0:
        return "oom", "killed by the kernel's out-of-memory killer", ""
    if end.exit_code == 0:
        return "crashed", "exit code 0 before the job's function had returned (os._exit?)", ""
    return "crashed", _how(end), ""


def _how(end: Exit) -> str:
    if end.signal:
        return f"killed by {name_signal(end.signal)}"
    return f"exit code {end.exit_code} without a message"


@dataclass(frozen=True)
class Verdict:
    """The job's status and whom to blame."""

    status: str
    """ok, oom, timeout, crashed or unsupported."""
    reason: str
    """One sentence; empty when ok."""
    failing_rank: int | None
    """Rank to blame, or None."""


def judge_job(ends: Sequence[RankEnd], timeout_s: float | None = None) -> Verdict:
    """Decides how a job ended from how its ranks ended.

    A rank that we stopped is never to blame. Among ranks that failed of their own accord, those which
    only report a vanished peer come last; then the earliest failure counts.

    Args:
        ends: One per rank of the job.
        timeout_s: The job's limit if it was the limit that stopped the job, else None.
    """
    failed = [end for end in ends if end.status not in ("ok", "stopped")]
    causes = [end for end in failed if not is_secondary(end)]
    if timeout_s is not None and not causes:
        return _judge_timeout(ends, timeout_s)
    if failed:
        first = min(causes or failed, key=_failure_order)
        return Verdict(first.status, f"rank {first.rank} ({first.host}): {first.reason}", first.rank)
    stopped = [end for end in ends if end.status == "stopped"]
    if stopped:
        first = stopped[0]
        return Verdict("crashed", f"rank {first.rank} ({first.host}): {first.reason}", None)
    return Verdict("ok", "", None)


def _failure_order(end: RankEnd) -> tuple[float, int]:
    return (float("inf") if end.failed_at is None else end.failed_at, end.rank)


def is_secondary(end: RankEnd) -> bool:
    """Tells whether a failure is probably the echo of another rank's end."""
    asked = end.signal in ASKED_TO_STOP
    return asked or (end.status == "crashed" and bool(_SECONDARY.search(end.reason)))


def _judge_timeout(ends: Sequence[RankEnd], timeout_s: float) -> Verdict:
    late = [end for end in ends if end.status != "ok"] or list(ends)
    where = "; ".join(f"rank {end.rank} ({end.host}) in {end.phase or 'no phase yet'}" for end in late[:8])
    more = f"; and {len(late) - 8} more" if len(late) > 8 else ""
    # Only when some ranks finished does one that did not stand out.
    blamed = late[0].rank if len(late) < len(ends) else None
    return Verdict("timeout", f"not finished after {timeout_s:g} s: {where}{more}", blamed)
