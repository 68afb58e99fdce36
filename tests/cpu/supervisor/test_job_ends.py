"""Every way in which a worker can end, in one launch of two ranks: the next job must always run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launched, job

from bench.supervisor.processes import process_key

_BIG = 9 * 2**20


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("ends")
    jobs = [
        {**job("ok", big=_BIG, word="größer"), "env": {"EXTRA": "given"}},
        job("raise1", "fail", how="raise", rank=1),
        job("kill0", "fail", how="kill", rank=0),
        job("kill1", "fail", how="kill", rank=1),
        job("segfault1", "fail", how="segfault", rank=1),
        job("exit17", "fail", how="exit17", rank=0),
        job("leave0", "fail", how="leave", rank=0),
        job("sys_exit1", "fail", how="sys_exit", rank=1),
        job("memory1", "fail", how="memory", rank=1),
        job("unsupported0", "fail", how="unsupported", rank=0),
        job("missing", "no_such_function"),
        job("echo1", "echo", rank=1, socket=str(folder / "echo.sock")),
        job("hang1", "hang", timeout_s=1, rank=1),
        job("spin", "spin_with_grandchildren", timeout_s=1),
        job("alone", ranks="rank0"),
        job("node", ranks="one_per_node"),
        job("store", "join_store"),
        job("last"),
    ]
    launch = Launched(folder, jobs, DRIVE_LIMITS=json.dumps({"grace_s": 0.3, "ship_bytes": _BIG + 2**20}))
    launch.start_ranks()
    try:
        launch.codes = launch.wait(80)
        yield launch
    finally:
        launch.kill()


@pytest.fixture
def ends(launch: Launched) -> dict[str, dict]:
    return launch.job_ends()


def _rank(end: dict, rank: int) -> dict:
    return next(entry for entry in end["ranks"] if entry["rank"] == rank)


def test_session_ends_in_good_order_whatever_the_jobs_did(launch: Launched) -> None:
    assert launch.closed() == "in good order"
    assert launch.codes == [0, 0]
    launch.assert_nothing_left()
    assert list((launch.folder / "scratch").iterdir()) == []


def test_ok_job_brings_all_files_of_all_ranks_to_rank_0(ends: dict) -> None:
    end = ends["ok"]
    assert (end["status"], end["reason"], end["failing_rank"]) == ("ok", "", None)
    for rank in (0, 1):
        assert end["files"][f"rank{rank}/big.bin"] == f"{_BIG} bytes"
        assert end["files"][f"rank{rank}/deep/er/empty"] == ""
        assert end["files"][f"rank{rank}/worker.log"] == f"hello from {rank}\n"
        assert _rank(end, rank)["missing_files"] == []


def test_worker_knows_its_place_and_its_payload(ends: dict) -> None:
    facts = [json.loads(ends["ok"]["files"][f"rank{rank}/facts.json"]) for rank in (0, 1)]
    for rank, fact in enumerate(facts):
        assert (fact["RANK"], fact["LOCAL_RANK"], fact["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert fact["EXTRA"] == "given" and fact["word"] == "größer"
        info = fact["info"]
        assert (info["rank"], info["world_size"], info["local_world_size"], info["node_count"]) == (rank, 2, 2, 1)
    assert facts[0]["MASTER_PORT"] == facts[1]["MASTER_PORT"]
    assert facts[0]["pid"] != facts[1]["pid"] and facts[0]["parent"] == facts[1]["parent"]


@pytest.mark.parametrize(
    ("name", "status", "rank", "reason"),
    [
        ("raise1", "crashed", 1, "ValueError: the learning rate is negative"),
        ("kill0", "crashed", 0, "killed by SIGKILL"),
        ("kill1", "crashed", 1, "killed by SIGKILL"),
        ("segfault1", "crashed", 1, "killed by SIGSEGV"),
        ("exit17", "crashed", 0, "exit code 17 without a message"),
        ("leave0", "crashed", 0, "exit code 0 before the job's function had returned"),
        ("sys_exit1", "crashed", 1, "the job's function left early by sys.exit(0)"),
        ("memory1", "oom", 1, "RuntimeError: [enforce fail at alloc_cpu.cpp]"),
        ("unsupported0", "unsupported", 0, "pipeline of 3 stages does not divide 4 layers"),
    ],
)
def test_failure_is_blamed_on_the_rank_that_failed(ends: dict, name: str, status: str, rank: int, reason: str) -> None:
    end = ends[name]
    assert (end["status"], end["failing_rank"]) == (status, rank)
    assert f"rank {rank} (" in end["reason"] and reason in end["reason"]
    assert _rank(end, rank)["phase"] == "about to fail"
    assert _rank(end, rank)["status"] == status
    other = _rank(end, 1 - rank)
    assert (other["status"], other["phase"]) == ("stopped", "waiting for a peer")
    assert f"rank {rank} had failed" in other["reason"]


def test_failed_workers_still_deliver_log_and_traceback(ends: dict) -> None:
    assert "ValueError: the learning rate is negative" in ends["raise1"]["log_tail"]
    assert "second line" in ends["raise1"]["files"]["rank1/worker.log"]
    assert "Segmentation fault" in ends["segfault1"]["log_tail"]


def test_stopped_worker_shows_where_it_stood(ends: dict) -> None:
    assert "_wait_for_ever" in ends["kill0"]["files"]["rank1/worker.log"]


def test_unknown_function_is_a_crash_of_every_rank(ends: dict) -> None:
    assert ends["missing"]["status"] == "crashed"
    assert "no_such_function" in ends["missing"]["reason"]


def test_echo_of_a_death_is_not_blamed(ends: dict) -> None:
    end = ends["echo1"]
    assert (end["failing_rank"], end["status"]) == (1, "crashed")
    assert "SIGKILL" in end["reason"]
    assert "closed by peer" in _rank(end, 0)["reason"]


def test_hang_that_ignores_term_is_a_timeout_with_its_phase(ends: dict) -> None:
    end = ends["hang1"]
    assert (end["status"], end["failing_rank"]) == ("timeout", 1)
    assert "not finished after 1 s: rank 1 (" in end["reason"] and "waiting for a peer" in end["reason"]
    assert _rank(end, 0)["status"] == "ok"
    assert (_rank(end, 1)["status"], _rank(end, 1)["signal"]) == ("stopped", 9)


def test_busy_loop_dies_with_its_grandchildren(ends: dict) -> None:
    end = ends["spin"]
    assert end["status"] == "timeout" and "spinning" in end["reason"]
    for rank in (0, 1):
        for pid in map(int, end["files"][f"rank{rank}/grandchildren"].split()):
            key = process_key(pid)
            assert key is None or not key.alive()


@pytest.mark.parametrize("name", ["alone", "node"])
def test_jobs_on_fewer_ranks_form_a_world_of_their_own(ends: dict, name: str) -> None:
    end = ends[name]
    assert end["status"] == "ok" and [entry["rank"] for entry in end["ranks"]] == [0]
    facts = json.loads(end["files"]["rank0/facts.json"])
    assert (facts["WORLD_SIZE"], facts["LOCAL_WORLD_SIZE"], facts["info"]["world_size"]) == ("1", "1", 1)


def test_jobs_after_all_failures_run(ends: dict) -> None:
    assert ends["store"]["status"] == "ok"
    assert ends["last"]["status"] == "ok"


def test_scratch_of_killed_supervisors_is_removed(tmp_path: Path) -> None:
    from bench.supervisor.scratch import make_home

    home = make_home(tmp_path, 0)
    start, _, rest = home.name.partition("-rank0-")
    _, started, tail = rest.split("-")
    stale = tmp_path / f"{start}-rank1-{2**22 + 1}-{started}-{tail}"
    stale.mkdir()
    again = make_home(tmp_path, 0)
    assert home.exists() and again.exists() and not stale.exists()
