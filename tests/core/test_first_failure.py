"""Who failed first is named also where nobody knows why."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.test_diagnose import RULES, evidence_of
from watchdog_train.core.diagnosis.collectives import not_come
from watchdog_train.core.diagnosis.facts import (
    EndFact,
    Evidence,
    HostFacts,
    LogText,
    ProcessEvidence,
)
from watchdog_train.core.diagnosis.log_lines import read_line
from watchdog_train.core.model import ExitStatus, RankEnd
from watchdog_train.explain.because import judge
from watchdog_train.report.explanation_text import sentences

NO_KILL = HostFacts(oom_kills=0, oom_since_start=True)
TORCHRUN = (
    "E1105 elastic/api.py:882] failed (exitcode: -9) local_rank: 1 (pid: 11) of binary: python3",
    "Traceback (most recent call last):",
    "  exitcode  : -9 (pid: 11)",
    "  traceback : Signal 9 (SIGKILL) received by PID 11",
)


def gone(rank, at_unix, *, pid=None, **how):
    """A rank whose end was recorded."""
    pid = 10 + rank if pid is None else pid
    end = RankEnd(pid=pid, start=1, rank=rank, world_size=4, step=25, phase="train", at=0.0, **how)
    return ProcessEvidence(
        pid=pid,
        start=1,
        ppid=9,
        role="rank",
        rank=rank,
        state="X",
        why_not="it ended",
        ended=EndFact(end=end, at_unix=at_unix),
    )


def crash(*processes, log=(), host=NO_KILL):
    """A launcher with exit code 1 whose ranks are gone."""
    return Evidence(
        why="crash",
        processes=processes,
        logs=(LogText(source="output.log", lines=tuple(log)),),
        exit=ExitStatus(code=1, signal=None, how_known="keeper"),
        host=host,
    )


def told(evidence):
    """Family, rank and words of the explanation; no rank where it names several."""
    found = judge(evidence, RULES)
    rank = found.root.who.rank if found.root and not (found.alike or found.also) else None
    return found.family, rank, " ".join(sentences(found))


def test_a_rank_that_was_killed_where_the_kernel_counted_no_memory_kill():
    """The first failure is named, its sender is left open, and no memory killer is blamed."""
    family, rank, words = told(
        crash(gone(0, 101.0, signal=15), gone(1, 100.0, signal=9), log=TORCHRUN)
    )
    assert (family, rank) == (None, 1)
    assert "rank 1 (pid 11) was killed by SIGKILL from outside wtrain at step 25." in words
    assert "rank 0 exited after rank 1 (pid 11)." in words


def test_the_same_kill_where_the_kernel_counted_one():
    """Then it was the memory killer, and whom it took is named."""
    counted = HostFacts(oom_kills=1, oom_since_start=True)
    ends = (gone(0, 101.0, signal=15), gone(1, 100.0, signal=9))
    family, rank, words = told(crash(*ends, host=counted))
    assert (family, rank) == ("oom-killer", 1)
    assert "rank 1" in words


@pytest.mark.parametrize(
    ("others", "rank"),
    [
        ({"code": 1}, 1),
        ({"signal": 15}, 1),
        ({"signal": 6}, 1),
        ({"code": 0}, 1),
        ({"signal": 9}, None),
        ({"signal": 11}, None),
    ],
)
def test_of_ends_in_one_look_a_kill_comes_before_what_follows_from_it(others, rank):
    """A peer that is gone makes the others raise or abort; two kills at once have no order."""
    ends = (gone(0, 100.0, **others), gone(1, 100.0, signal=9))
    assert told(crash(*ends))[1] == rank


def test_an_error_before_a_kill_was_first():
    """Launchers end with SIGKILL who does not end after SIGTERM."""
    family, rank, words = told(crash(gone(0, 130.0, signal=9), gone(1, 100.0, code=1)))
    assert (family, rank) == (None, 1)
    assert "rank 1 (pid 11) exited with code 1 at step 25." in words
    assert "wtrain" not in words


def test_what_only_the_launcher_tells_of_an_end():
    """Where its parent has taken the status from the kernel before anybody could look."""
    ends = (gone(0, 101.0, signal=15), gone(1, 100.0), gone(2, 99.0, code=0))
    assert told(crash(*ends, log=TORCHRUN))[:2] == (None, 1)
    assert "how is unknown" in told(crash(gone(1, 100.0), log=["nothing of it"]))[2]
    line = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with"
    killed = told(crash(gone(0, 101.0), gone(1, 100.0), log=[f"{line} signal SIGKILL"]))[2]
    assert killed.startswith("rank 1 (pid 11) was killed by SIGKILL")
    ended = told(crash(gone(0, 101.0), gone(1, 100.0), log=[f"{line} exit code 3"]))[2]
    assert "rank 1 (pid 11) exited with code 3" in ended


def test_a_native_crash_and_a_training_that_had_ended():
    """SIGSEGV is nobody's signal from outside; after a quiet end it is no failure at all."""
    _, rank, words = told(crash(gone(0, 100.0, signal=11)))
    assert rank == 0
    assert "rank 0 (pid 10) crashed with SIGSEGV at step 25." in words
    assert told(crash(gone(0, 100.0, signal=11, said="quiet")))[1] is None


def test_a_training_of_one_process_that_was_killed():
    """Its own exit status is all there is."""
    case = {"why": "crash", "processes": [], "exit": {"signal": 9}}
    evidence = msgspec.structs.replace(evidence_of(case), host=NO_KILL)
    assert told(evidence)[2] == "the training was killed by SIGKILL from outside wtrain."


def meeting(*absent, seen=(), world_size=None):
    """Rank 0 waits at the store; these are elsewhere."""
    store = ("_create_c10d_store (torch/distributed/rendezvous.py:1)", "main (train.py:1)")
    processes = [{"pid": 10, "ppid": 1, "role": "rank", "rank": 0, "state": "S", "main": store}]
    processes += [
        {
            "pid": 10 + rank,
            "ppid": 1,
            "role": "rank",
            "rank": rank,
            "state": "S",
            "main": (f"warm_{rank} (prepare.py:{rank})", "main (train.py:1)"),
        }
        for rank in absent
    ]
    processes += [{**processes[0], "pid": 10 + rank, "rank": rank} for rank in seen]
    evidence = evidence_of({"why": "stall", "processes": processes})
    return msgspec.structs.replace(evidence, world_size=world_size)


def test_all_ranks_that_have_not_come_to_the_meeting_are_named():
    """With their places, and with those of which nothing is seen on this machine."""
    family, rank, words = told(meeting(1, 3, seen=(2,), world_size=6))
    assert (family, rank) == ("store-rendezvous", None)
    assert "rank 1 (pid 11) is standing still in warm_1 (prepare.py:1)" in words
    assert "rank 3 (pid 13) is standing still in warm_3 (prepare.py:3)" in words
    assert "Nothing was seen of ranks 4-5." in words


def test_very_many_ranks_that_have_not_come_are_counted():
    """One screen, whatever the size of the job."""
    words = told(meeting(*range(1, 31)))[2]
    assert "and 27 more" in words
    assert len(words) < 1200


BARRIER = "store based barrier to initialize process group for rank: {}, key: k:1 (world_size=4, "


@pytest.mark.parametrize(
    ("printed", "missing"),
    [
        ([(0, 2), (3, 2)], (1, 2)),
        ([(0, 1), (3, 2)], (1, 2)),
        ([(0, 2)], ()),
        ([(0, 4), (1, 4), (2, 4), (3, 4)], ()),
        ([], ()),
    ],
)
def test_who_did_not_come_by_what_the_others_print(printed, missing):
    """Only where every one that came has printed it: else some output is missing."""
    lines = [f"Waiting in {BARRIER.format(rank)}worker_count={came})" for rank, came in printed]
    assert not_come((read_line(line), None) for line in lines) == missing
