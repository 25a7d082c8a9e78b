"""Each silence has words of its own: what a person reads tells which one it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from tests.core.test_detect import busy, judge, silent
from watchdog_train.core import events as e
from watchdog_train.core.actions import StartEvidence
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.detection.track import Sleep
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.model import RankEnd, Sample, said
from watchdog_train.core.notices.poll_events import news
from watchdog_train.core.policy import Policy
from watchdog_train.core.suspect import watch
from watchdog_train.report.narrative import narrate
from watchdog_train.report.notices import notice_rows
from watchdog_train.report.why_text import why_text


def failed(at: float, *, code: int) -> Sample:
    """Rank 1 has ended after 60 steps of both; rank 0 stands still since."""
    one = RankEnd(
        pid=11, start=1011, rank=1, world_size=2, step=60, phase="train", at=60.0, code=code
    )
    both = at < 60
    members = [b.rank(10, 0, words=1 + int(min(at, 60)), world_size=2)]
    if both:
        members.append(b.rank(11, 1, words=1 + int(at), world_size=2))
    return b.sample(at, *members, births=2, deaths=0 if both else 1, ended=() if both else (one,))


SILENCES: dict[str, tuple[Any, float, str]] = {
    "quiet hang": (silent(b.rank(words=3)), 60, "the whole job is idle"),
    "busy over the hard limit": (silent(cpu_s=busy), 950, "but the job is busy"),
    "a rank failed": (lambda at: failed(at, code=1), 85, "rank 1 (pid 11) ended with exit code 1"),
    "a rank ended well": (lambda at: failed(at, code=0), 85, "and the others may be finishing"),
    "state D": (silent(b.rank(words=3, state="D")), 310, "waits in the kernel (state D)"),
    "alive without progress": (
        silent(cpu_s=busy, log_bytes=lambda at: int(at) // 10),
        950,
        "its output continues while no step is counted",
    ),
    "after the end": (
        silent(b.rank(words=9, phase="finished")),
        100,
        "training is over, but rank 0 has",
    ),
}
"""Stopped and input are told by the wait; `suspended`, below, is no silence of the job."""


@pytest.mark.parametrize("name", SILENCES)
def test_each_has_words_of_its_own(name: str) -> None:
    poll, seconds, said = SILENCES[name]
    why = why_text(judge(poll, seconds).why)
    assert said in why
    for other, (_, _, words) in SILENCES.items():
        # A rank that is gone and a hang after the end are quiet, too, and say more.
        assert other in (name, "quiet hang") or words not in why, f"{name} sounds like {other}"


def test_printing_without_a_step_is_said_and_not_killed() -> None:
    """Dumped once, under its own word, though the output pauses now and then."""
    poll, seconds, _ = SILENCES["alive without progress"]
    found = judge(poll, seconds)
    sample = poll(seconds)
    suspected = e.Suspected(
        basis="hard-budget", phase="train", ranks=(0,), age_s=900.0, why=said("")
    )
    state = b.running(suspected)
    action = watch(b.observation(sample, found), state, Policy())
    assert isinstance(action, StartEvidence)
    observed = b.observation(sample, found, running=frozenset({"evidence"}))
    action = watch(observed, state, Policy())
    (notice,) = action.events
    assert notice.kind == "no-progress"
    state = b.running(suspected, notice)
    assert watch(observed, state, Policy()) is None
    paused = msgspec.structs.replace(found, prints=False)
    assert watch(b.observation(sample, paused), state, Policy()) is None
    assert notice_rows(state) == [("Notice", why_text(found.why))]


def test_a_sleep_is_said_once_and_the_next_one_again() -> None:
    """In the log, on the terminal and in status; a look that was a little late is not."""

    def said(slept: Sleep | None, *before: e.AnyEvent) -> list[e.Noticed]:
        poll = b.sample(500.0, b.rank(words=3))
        state = b.running()
        for event in before:
            state = evolve(state, event)
        found = news(b.observation(poll, slept=slept), state, Policy())
        return [x for x in found if isinstance(x, e.Noticed)]

    night = Sleep(at=480.0, seconds=7200.0, machine=True)
    (notice,) = said(night)
    assert notice.kind == "suspended"
    assert "the machine slept for 2 h" in why_text(notice.why)
    recorded = msgspec.structs.replace(notice, mono=481.0)
    assert said(night, recorded) == []
    assert len(said(Sleep(at=490.0, seconds=60.0, machine=True), recorded)) == 1
    assert said(Sleep(at=480.0, seconds=8.0, machine=False)) == []
    (ours,) = said(Sleep(at=480.0, seconds=80.0, machine=False))
    assert "this supervisor was stopped or got no CPU" in why_text(ours.why)
    state = evolve(b.running(), recorded)
    assert narrate(recorded, state) != ()
    assert notice_rows(state)[0][1].startswith("the machine slept")
    alive = b.observation(b.sample(501.0, b.rank(words=4)), Verdict(kind="alive"))
    assert watch(alive, state, Policy()) is None  # no silence that could be over
