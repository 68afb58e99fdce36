"""From processes' ends to verdicts: pure rules."""

from __future__ import annotations

import signal

import pytest

from bench.supervisor.contract import Job, RankEnd
from bench.supervisor.verdict import Exit, judge_exit, judge_job

_FAILURE = {"status": "oom", "reason": "OutOfMemoryError: 2 GiB", "failed_at": 1.0}


def _end(rank: int, status: str = "ok", reason: str = "", **fields: object) -> RankEnd:
    values = {"exit_code": 0, "signal": None, "phase": "", "log_tail": "", "wall_s": 1.0, **fields}
    return RankEnd(rank=rank, host=f"h{rank}", status=status, reason=reason, **values)


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (Exit(exit_code=0, done=True), "ok", ""),
        (Exit(exit_code=0), "crashed", "exit code 0 before"),
        (Exit(exit_code=3), "crashed", "exit code 3 without a message"),
        (Exit(exit_code=1, failure=_FAILURE), "oom", "OutOfMemoryError: 2 GiB"),
        (Exit(signal=signal.SIGSEGV), "crashed", "killed by SIGSEGV"),
        (Exit(signal=signal.SIGKILL), "crashed", "killed by SIGKILL"),
        (Exit(signal=signal.SIGKILL, oom_kills=1), "oom", "out-of-memory killer"),
        (Exit(signal=signal.SIGSEGV, oom_kills=1), "crashed", "SIGSEGV"),
        (Exit(signal=signal.SIGKILL, oom_kills=1, stopped_because="rank 1 failed"), "stopped", "rank 1 failed"),
        (Exit(signal=signal.SIGTERM, failure=_FAILURE, stopped_because="rank 1 failed"), "oom", "2 GiB"),
        (Exit(never_started="no memory to fork"), "crashed", "no worker process: no memory to fork"),
    ],
)
def test_exit_of_one_worker(end: Exit, status: str, reason: str) -> None:
    found = judge_exit(end)
    assert found[0] == status and reason in found[1]


def test_crash_after_the_function_had_returned_keeps_the_results() -> None:
    status, reason, note = judge_exit(Exit(signal=signal.SIGABRT, done=True))
    assert (status, reason) == ("ok", "") and note == "killed by SIGABRT after the job's function had returned"


def test_all_ok() -> None:
    verdict = judge_job([_end(0), _end(1)])
    assert (verdict.status, verdict.reason, verdict.failing_rank) == ("ok", "", None)


def test_first_failure_is_blamed_not_the_lowest_rank() -> None:
    ends = [_end(0, "crashed", "B", failed_at=12.0), _end(1, "oom", "A", failed_at=11.0), _end(2, "stopped", "x")]
    verdict = judge_job(ends)
    assert (verdict.status, verdict.reason, verdict.failing_rank) == ("oom", "rank 1 (h1): A", 1)


@pytest.mark.parametrize(
    "echo",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:554] Connection closed by peer [10.0.0.1]:4711",
        "DistBackendError: NCCL error, remote process exited or there was a network error, ncclRemoteError",
        "DistNetworkError: Connection reset by peer",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_echo_of_a_vanished_peer_is_not_blamed_even_if_it_came_first(echo: str) -> None:
    verdict = judge_job([_end(0, "crashed", echo, failed_at=1.0), _end(1, "crashed", "killed", failed_at=2.0)])
    assert verdict.failing_rank == 1
    alone = judge_job([_end(0, "crashed", echo, failed_at=1.0), _end(1)])
    assert alone.failing_rank == 0


def test_sigterm_from_outside_is_no_cause_beside_another_failure() -> None:
    ends = [_end(0, "crashed", "killed by SIGTERM", signal=15, failed_at=1.0), _end(1, "oom", "A", failed_at=2.0)]
    assert judge_job(ends).failing_rank == 1


def test_lost_rank_is_blamed_before_what_it_caused() -> None:
    ends = [_end(0, "crashed", "ValueError", failed_at=5.0), _end(1, "crashed", "rank lost: silent", failed_at=0.0)]
    assert judge_job(ends).failing_rank == 1


def test_timeout_names_the_phases_and_blames_who_did_not_finish() -> None:
    ends = [_end(0), _end(1, "stopped", "limit", phase="step 3"), _end(2)]
    verdict = judge_job(ends, timeout_s=60)
    assert (verdict.status, verdict.failing_rank) == ("timeout", 1)
    assert verdict.reason == "not finished after 60 s: rank 1 (h1) in step 3"
    everyone = judge_job([_end(0, "stopped", "limit"), _end(1, "stopped", "limit", phase="init")], timeout_s=60)
    assert everyone.failing_rank is None
    assert everyone.reason == "not finished after 60 s: rank 0 (h0) in no phase yet; rank 1 (h1) in init"


def test_timeout_with_many_ranks_stays_readable() -> None:
    verdict = judge_job([_end(rank, "stopped", "limit", phase="init") for rank in range(64)], timeout_s=1)
    assert "rank 7 (h7)" in verdict.reason and "rank 8 (h8)" not in verdict.reason and "and 56 more" in verdict.reason


def test_cause_beside_a_timeout_wins() -> None:
    verdict = judge_job([_end(0, "oom", "A", failed_at=1.0), _end(1, "stopped", "limit")], timeout_s=1)
    assert (verdict.status, verdict.failing_rank) == ("oom", 0)


def test_rank_end_survives_its_journey() -> None:
    end = _end(3, "crashed", "größer", signal=9, missing_files=("big.bin (too big)",), failed_at=1.5)
    assert RankEnd.from_json(end.to_json()) == end
    assert end.signal_name == "SIGKILL"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "../up"}, "job name"),
        ({"name": ""}, "job name"),
        ({"entry": "os.system"}, "package.module:function"),
        ({"ranks": "some"}, "all, rank0, one_per_node"),
        ({"timeout_s": 0}, "positive"),
        ({"timeout_s": float("inf")}, "positive"),
        ({"payload": {"x": float("nan")}}, "JSON"),
    ],
)
def test_jobs_are_checked_before_anything_starts(change: dict, says: str) -> None:
    fields = {"name": "a", "entry": "m:f", "payload": {}, "timeout_s": 1.0, **change}
    with pytest.raises(ValueError, match=says):
        Job(**fields)
