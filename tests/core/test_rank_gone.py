"""A rank that ended while others live: in vain are they waited for, or are they at their end?"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import builders as b
from watchdog_train.core.detection import rank_gone
from watchdog_train.core.detection.detect import Verdict, verdict
from watchdog_train.core.detection.track import advance, new_track
from watchdog_train.core.model import MemberSample, RankEnd
from watchdog_train.core.policy import Detection
from watchdog_train.report.why_text import why_text

ENDED_AT = 60
FAILED: dict[str, Any] = {"code": 1, "said": "exception"}


def end(pid: int = 11, number: int = 1, at: float = ENDED_AT, **changes: Any) -> RankEnd:
    values: dict[str, Any] = {"world_size": 2, "step": 59, "phase": "train", **changes}
    return RankEnd(pid=pid, start=pid + 1000, rank=number, at=at, **values)


def other(number: int = 0, *, words: int = 59, **changes: Any) -> MemberSample:
    return b.rank(10 + number, number, words=words, world_size=2, **changes)


def judge(
    seconds: float,
    *ends: RankEnd,
    others: Any = other,
    extra: tuple[MemberSample, ...] = (),
    detection: Detection | None = None,
    **signals: Any,
) -> Verdict:
    """The verdict so long after rank 1 ended: steps of a second, then `others` stand as told."""
    rules = detection or Detection()
    track = new_track(0.0)
    for at in range(ENDED_AT + int(seconds) + 1):
        alive = at < ENDED_AT
        members = (
            (other(0, words=at), other(1, words=at)) if alive else (_members(others, float(at)))
        )
        values = {name: value(at) if callable(value) else value for name, value in signals.items()}
        sample = b.sample(
            float(at),
            *members,
            *extra,
            ended=() if alive else (ends or (end(**FAILED),)),
            deaths=0 if alive else 1,
            **values,
        )
        track = advance(track, sample, rules)
    return verdict(track, sample, rules)


def _members(others: Any, at: float) -> tuple[MemberSample, ...]:
    found = others() if others is other else others(at)
    return found if isinstance(found, tuple) else (found,)


LAUNCHER = b.member(20, "launcher")


def test_a_failed_rank_is_a_stall_as_soon_as_nobody_reacts() -> None:
    """The others stand still: no budget is waited for, only the time in which somebody may act."""
    assert judge(9).kind == "alive"
    found = judge(12)
    assert (found.kind, found.basis, found.ranks) == ("stall", "rank-gone", (1,))
    assert found.phase == "train"
    assert why_text(found.why).startswith(
        "rank 1 (pid 11) ended with an exception at step 59; rank 0 made no progress for 12 s since"
    )


def test_a_launcher_gets_the_time_that_it_takes() -> None:
    """torchrun ends the other ranks within 30 s, and they may save meanwhile."""
    assert judge(44, extra=(LAUNCHER,)).kind != "stall"
    assert judge(47, extra=(LAUNCHER,)).kind == "stall"


def test_a_zombie_has_a_parent_that_does_not_look() -> None:
    """A launcher that has not even asked for the exit status is not about to react."""
    assert judge(12, end(**FAILED, unnoticed=True), extra=(LAUNCHER,)).kind == "stall"


NO_STALL: dict[str, dict[str, Any]] = {
    "the others make progress": {"others": lambda at: other(words=int(at))},
    "the others have moved after it": {"others": lambda at: other(words=min(int(at), 66))},
    "the others are busy": {"cpu_s": float},
    "the others have begun anew": {"others": lambda at: (other(), b.rank(31, 1, world_size=2))},
    "a rank of another job": {"others": lambda at: b.rank(10, 0, words=59, world_size=4)},
    "no other rank": {"others": lambda at: b.member(10)},
    "born after it ended": {"others": lambda at: b.rank(30, 0, world_size=2)},
    "a save": {"others": lambda at: other(phase="checkpoint")},
    "an evaluation": {"others": lambda at: other(phase="eval")},
    "the last save": {"others": lambda at: other(phase="finishing")},
    "finished": {"others": lambda at: other(phase="finished")},
    "announced silence": {"others": lambda at: other(expect_until_ns=10**15)},
    "stopped": {"others": lambda at: other(state="T")},
}


@pytest.mark.parametrize("name", NO_STALL)
def test_no_stall_while_the_others_may_be_right(name: str) -> None:
    """Work that needs no other rank is not thrown away for a failed one."""
    assert judge(13, **NO_STALL[name]).kind != "stall"


def test_ranks_that_wait_busily_get_the_time_of_a_merge() -> None:
    """An NCCL wait spins a core; so does merging what is already complete."""
    assert judge(rank_gone.MERGING_S - 1, cpu_s=float).kind != "stall"
    assert judge(rank_gone.MERGING_S + 2, cpu_s=float).basis == "rank-gone"


def test_slow_steps_have_two_steps_time() -> None:
    """A rank in a step of 20 s does not stand still yet."""

    def slow(at: int) -> tuple[MemberSample, ...]:
        return (other(0, words=1 + at // 20), other(1, words=1 + at // 20))

    def verdict_after(seconds: int) -> Verdict:
        track, rules = new_track(0.0), Detection()
        for at in range(400 + seconds + 1):
            alive = at < 400
            members = slow(at) if alive else slow(400)[:1]
            ended = () if alive else (end(at=400.0, **FAILED),)
            sample = b.sample(float(at), *members, ended=ended, deaths=int(not alive))
            track = advance(track, sample, rules)
        return verdict(track, sample, rules)

    assert verdict_after(38).kind == "alive"
    assert verdict_after(42).kind == "stall"


WELL: dict[str, dict[str, Any]] = {
    "exit code 0": {"code": 0, "said": "quiet"},
    "by itself, code unknown": {"said": "quiet"},
    "nothing is known": {},
    "a crash in a destructor": {"signal": 11, "said": "quiet"},
}


@pytest.mark.parametrize("name", WELL)
def test_a_rank_that_may_have_ended_well_is_no_stall(name: str) -> None:
    """Rank 0 may save for minutes: over its budget it is looked at, and gets time to finish."""
    how = WELL[name]
    assert judge(10, end(**how)).kind == "alive"
    found = judge(20, end(**how))
    assert (found.kind, found.basis, found.ranks) == ("suspect", "rank-gone", (1,))
    assert found.may_be_through
    assert rank_gone.how_it_ended(end(**how)) in why_text(found.why)
    assert judge(20, end(**how), others=lambda at: other(phase="finishing")).basis == "finishing"


def test_a_rank_that_left_before_the_last_step_is_not_through() -> None:
    """Where the number of steps is known nobody has to guess."""
    early = lambda at: other(total_steps=100)  # noqa: E731 - one more line of a table
    assert not judge(20, end(code=0), others=early).may_be_through
    last = lambda at: other(total_steps=59)  # noqa: E731
    assert judge(20, end(code=0), others=last).may_be_through


def test_after_the_end_of_training_it_is_a_hang_at_the_end() -> None:
    """Rank 0 that hangs in its last save has finished, whoever else has."""
    found = judge(120, end(code=0), others=lambda at: other(phase="finishing"))
    assert (found.kind, found.basis) == ("suspect", "finishing")


ENDS: list[tuple[dict[str, Any], bool | None, str]] = [
    ({"code": 1}, True, "ended with exit code 1 at step 59"),
    ({"code": 1, "said": "quiet"}, True, "ended with exit code 1 at step 59"),
    (FAILED, True, "ended with an exception at step 59"),
    ({"said": "exception"}, True, "ended with an exception at step 59"),
    ({"signal": 9}, True, "was killed by SIGKILL at step 59"),
    ({"signal": 40}, True, "was killed by signal 40 at step 59"),
    (
        {"signal": 11, "said": "quiet"},
        False,
        "was killed by SIGSEGV at step 59, after its script was through",
    ),
    ({"code": 0}, False, "ended with exit code 0 at step 59"),
    ({"said": "quiet"}, None, "ended by itself at step 59"),
    ({}, None, "is gone, last seen at step 59; whether it was killed, nothing tells"),
    (
        {"step": None, "phase": "startup", "code": 3},
        True,
        "ended with exit code 3 in phase startup",
    ),
]


@pytest.mark.parametrize(("how", "failed", "words"), ENDS)
def test_what_is_known_of_an_end(how: dict[str, Any], failed: bool | None, words: str) -> None:
    assert rank_gone.has_failed(end(**how)) is failed
    assert rank_gone.how_it_ended(end(**how)) == f"rank 1 (pid 11) {words}"


def test_missing_are_those_whose_place_nobody_has_taken() -> None:
    ends = (end(11, 1), end(12, 2))
    zombie = b.rank(11, 1, state="Z")
    again = b.rank(22, 2)
    assert rank_gone.missing_ranks(b.sample(0.0, other(), zombie, again, ended=ends)) == ends[:1]


BAD: dict[str, Any] = {"said": "exception"}
GOOD: dict[str, Any] = {"code": 0, "said": "quiet"}
BEHIND_A_ZERO: dict[str, tuple[tuple[RankEnd, ...], int | None]] = {
    "nobody trained": ((), None),
    "one crashed": ((end(1, **BAD),), 1),
    "one was killed": ((end(1, signal=9),), 1),
    "killed after its script was through": ((end(1, signal=11, said="quiet"),), None),
    "nobody saw how it ended": ((end(1),), None),
    "a retry succeeded": ((end(1, at=1, **BAD), end(2, at=2, **GOOD)), None),
    "a retry ended unseen": ((end(1, at=1, **BAD), end(2, at=2)), None),
    "both tries crashed": ((end(1, at=1, **BAD), end(2, at=2, code=3)), 1),
    "the last fold crashed": ((end(1, at=1, **GOOD), end(2, at=2, **BAD)), 2),
    "first and last crashed": ((end(1, at=1, **BAD), end(2, at=2, **GOOD), end(3, at=3, **BAD)), 3),
    "a helper without a step crashed": (
        (end(1, at=1, **GOOD), end(2, at=2, step=None, **BAD)),
        None,
    ),
    "a helper succeeded after the crash": (
        (end(1, at=1, **BAD), end(2, at=2, step=None, **GOOD)),
        1,
    ),
    "it crashed before its first step": ((end(1, step=None, **BAD),), 1),
}


@pytest.mark.parametrize("name", list(BEHIND_A_ZERO))
def test_which_failure_an_exit_code_of_0_hides(name: str) -> None:
    """The first bad end after the last good one, of those that made steps."""
    ends, pid = BEHIND_A_ZERO[name]
    found = rank_gone.unanswered(ends)
    assert (found.pid if found is not None else None) == pid
