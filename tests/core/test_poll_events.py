"""Facts of one poll that are worth an event, each of them once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Record, SettingReport, Signal
from watchdog_train.core.decide import decide
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import CheckpointRef, ExitStatus, MemberSample, said
from watchdog_train.core.notices.notes import TaskNote
from watchdog_train.core.notices.poll_events import news
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.report.document import Document
from watchdog_train.report.why_text import why_text

POLICY = Policy()


def tell(state: State, *members: MemberSample, at: float = 1.0, **seen: Any) -> list[e.AnyEvent]:
    of_poll = {name: seen.pop(name) for name in ("keeper_alive", "ended") if name in seen}
    poll = b.sample(at, *members, **of_poll)
    return list(news(b.observation(poll, **seen), state, POLICY))


def fold(*rounds: list[e.AnyEvent]) -> State:
    return b.running(*(event for told in rounds for event in told))


def of(kind: type[e.AnyEvent], told: Iterable[e.AnyEvent]) -> list[Any]:
    return [event for event in told if isinstance(event, kind)]


def names(told: list[e.AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in told]


def test_firsts_are_said_once() -> None:
    told = tell(b.running(), b.rank(words=2))
    assert names(told) == ["FirstBeat", "FirstStep", "Progress"]
    assert tell(fold(told), b.rank(words=3)) == []


def test_a_beat_comes_before_a_step() -> None:
    assert names(tell(b.running(), b.rank())) == ["FirstBeat", "Progress"]


def test_no_news_of_an_attempt_that_is_over() -> None:
    assert tell(State(), b.rank(words=2)) == []
    assert tell(b.running(b.exited(), e.TreeGone()), b.rank(words=2)) == []


@pytest.mark.parametrize(
    ("before", "at", "count"),
    [(0, 29, 0), (0, 31, 1), (6000, 6055, 0), (6000, 6065, 1), (600_000, 600_245, 1)],
)
def test_progress_is_sampled(before: float, at: float, count: int) -> None:
    """Every half minute, however many steps there are, and less often in a long run."""
    state = fold(tell(b.running(), b.rank(words=2)))
    state = msgspec.structs.replace(state, progress_mono=before)
    assert len(tell(state, b.rank(words=900), at=at)) == count


def test_a_tree_is_recorded_when_it_has_changed() -> None:
    """The same processes in every event would be gigabytes a week of a large training."""
    state = fold(tell(b.running(), b.rank(words=2)))
    (same,) = tell(state, b.rank(words=3), at=40.0)
    assert same.members is msgspec.UNSET
    assert fold(tell(b.running(), b.rank(words=2)), [same]).members == state.members != ()
    more = [b.member(pid, "worker") for pid in (20, 21)]
    (other,) = tell(state, b.rank(words=3), *more, at=40.0)
    assert isinstance(other, e.Progress)
    assert other.members == tuple(one.member for one in more)
    state = evolve(state, other)
    (last,) = tell(state, b.rank(words=3), more[1], at=80.0)
    assert (last.members, last.gone) == (msgspec.UNSET, {"": (20,)})
    assert [one.pid for one in evolve(state, last).members] == [b.ROOT, 21]


@pytest.mark.parametrize("apart", [0, 1, 1000])
def test_progress_of_many_ranks_is_short(apart: int) -> None:
    """256 ranks, in step or not: what is recorded is exact, and a few bytes a rank."""
    steps = {rank: 5000 + apart * (rank % 3) for rank in range(256)}
    ranks = [b.rank(b.ROOT + rank, rank, words=step) for rank, step in steps.items()]
    state = fold(tell(b.running(), *ranks))
    (progress,) = tell(state, *ranks, at=40.0)
    assert isinstance(progress, e.Progress)
    assert len(e.encode(progress)) < 400 + (5 * 256 if apart else 0)
    assert {rank: step for group in progress.ranks for rank, step in group.each()} == steps
    recorded = Document(state=evolve(state, progress)).ranks
    assert [(one.rank, one.pid, one.step, one.phase) for one in recorded] == [
        (rank, b.ROOT + rank, step, "train") for rank, step in steps.items()
    ]


def test_of_several_that_say_the_same_rank_no_pid_is_recorded() -> None:
    twins = (b.rank(words=2), b.rank(b.ROOT + 1, 0, words=5))
    state = fold(tell(b.running(), *twins))
    assert [(one.rank, one.pid) for one in Document(state=state).ranks] == [(0, None), (0, None)]


def test_ranks_that_change_together_are_one_event() -> None:
    """All enter an evaluation: hundreds of events a time would be most of the log."""
    state = fold(tell(b.running(), b.rank(words=2), b.rank(11, 1, words=2)))
    into = (b.rank(11, 1, words=2, phase="eval"), b.rank(words=2, phase="eval"))
    (progress,) = tell(state, *into, at=6.0)
    assert isinstance(progress, e.Progress)
    assert {one.phase for one in progress.ranks} == {"eval"}


@pytest.mark.parametrize(("at", "count"), [(9.0, 0), (11.0, 1)])
def test_a_changed_tree_is_recorded_sooner(at: float, count: int) -> None:
    """An adopting supervisor must know the tree; helpers that come and go stay cheap."""
    told = tell(b.running(), b.rank(words=2))
    assert len(tell(fold(told), b.rank(words=2), b.member(20, "worker"), at=at)) == count


def test_phases_are_sampled() -> None:
    state = fold(tell(b.running(), b.rank(words=2)))
    assert tell(state, b.rank(words=2, phase="eval"), at=4.0) == []
    told = tell(state, b.rank(words=2, phase="eval"), at=6.0)
    assert names(told) == ["Progress"]


def test_phases_of_two_machines_under_one_pid() -> None:
    """Else each look of a job would be taken for a change, and an event with all ranks written."""
    here, there = b.rank(words=2), b.rank(number=1, words=2, phase="eval")
    away = msgspec.structs.replace(there.member, host="node1")
    both = here, msgspec.structs.replace(there, member=away)
    state = fold(tell(b.running(), *both))
    assert tell(state, *both, at=6.0) == []


def test_a_rank_that_ends_before_the_others_is_said_once() -> None:
    """Not at the end of all, and not while they are ended on purpose."""
    first = tell(b.running(), b.rank(words=2), b.rank(11, 1, words=2))
    state = fold(first)
    ended = (b.rank_ended().end,)
    told = tell(state, b.rank(words=2), ended=ended)
    assert names(told) == ["RankEnded", "Progress"]
    known = fold(first, told)
    assert [end.pid for end in known.rank_ends] == [11]
    assert tell(known, b.rank(words=2), ended=ended) == []
    assert tell(state, b.rank(words=2, state="Z"), ended=ended) == []
    killing = b.running(b.stall(), signalling())
    assert "RankEnded" not in names(tell(killing, b.rank(words=2), ended=ended))


def resuming(step: int | None, **changes: Any) -> list[e.AnyEvent]:
    """An attempt that should continue at a checkpoint."""
    checkpoint = CheckpointRef(path="/o", format="hf", step=step, how_checked="quick", **changes)
    plan = msgspec.structs.replace(b.plan(), checkpoint=checkpoint)
    launched = e.AttemptLaunched(pid=b.ROOT, start=1010, keeper_pid=9, keeper_start=1009)
    return [b.RUN_STARTED, e.AttemptLaunching(token="t", plan=plan), launched]


def signalling() -> e.Signalling:
    return e.Signalling(sequence="hang", stage="kill", targets=(), signal=9, why=said(""))


def test_settings_are_reported_once() -> None:
    report = SettingReport(remedy="omp-1", pid=b.ROOT, took=True, why="4 -> 1")
    told = tell(b.running(), settings=(report, report))
    assert names(told) == ["RemedyTaken", "Progress"]
    state = fold(told)
    assert state.attempt.taken == ("omp-1",)
    assert tell(state, settings=(report,)) == []


@pytest.mark.parametrize(
    ("loaded", "saved_step", "step", "ok"),
    [
        (7, 7, {"words": 8, "first_step": 8}, True),  # the hook loaded it
        (7, 7, {"words": 3, "first_step": 3}, False),  # it was loaded, and the counter is behind
        (None, 7, {"words": 1, "step": 9, "first_step": 8}, True),  # it resumed by itself
        (None, 7, {"words": 1, "first_step": 1}, False),  # it began again
        (None, 7, {"words": 9, "first_step": 1}, False),  # and was far when it was seen first
        (None, 7, {"words": 9}, False),  # a plain loop that counts from zero
        (None, 7, {"words": 2, "step": 9, "own_began": 8}, True),  # whose bar does not
        (None, None, {"words": 1}, False),
        (7, None, {"words": 1}, None),  # loaded; its first save may tell more
        (7, None, {"words": 1, "saves_ended": 1}, False),
        (7, None, {"words": 1, "saves_ended": 1, "continued": 1}, True),
        (7, 7, {"words": 1, "step": 8, "own_began": 8}, True),
        (None, 7, {"words": 9, "continued": 1}, True),  # a reader of its own
    ],
)
def test_a_resume_is_verified_by_the_first_step(
    loaded: int | None, saved_step: int | None, step: dict[str, int], ok: bool | None
) -> None:
    """Started again is not resumed, however late it is seen; a file that was loaded proves none."""
    state = b.fold(resuming(saved_step))
    told = tell(state, b.rank(**step), resumed_step=loaded)
    assert [one.ok for one in of(e.ResumeVerified, told)] == [ok] * (ok is not None)


def contradicted(
    *ranks: MemberSample, before: tuple[e.AnyEvent, ...] = (), **recovery: Any
) -> list[str]:
    """What is done, one decision after the other, about an attempt that should resume at 20."""
    history = [*resuming(20), *before]
    done: list[str] = []
    for _ in range(4):
        poll = b.observation(b.sample(10.0, *ranks))
        action = decide(poll, b.fold(history), Policy(recovery=Recovery(**recovery)), {})
        if isinstance(action, Signal):
            done.append(f"{action.sequence} {action.signal}")
            break
        if isinstance(action, Record):
            history += action.events
            done += names(list(action.events))
    verified = of(e.ResumeVerified, history)
    told = [event.verdict for event in verified]
    loaded = any(slot.load_begun and slot.began_anew for _, slot in poll.sample.judged)
    assert ("it was loaded, but" in "".join(why_text(one.why) for one in verified)) is loaded
    return [*told, *(each for each in done if each in ("GivenUp", "now 9"))]


def test_a_training_that_began_again_is_killed_before_it_saves() -> None:
    """By its own count only, never where any rank has resumed, and not where it is observed."""
    behind = b.rank(words=5, train_ordinal=0, began_anew=5)
    assert contradicted(behind) == ["contradicted", "GivenUp", "now 9"]
    asked = e.Signalling(sequence="stop", stage="root", targets=(), signal=15, why=said(""))
    assert contradicted(behind, before=(b.stop(), asked)) == ["contradicted", "now 9"]
    assert contradicted(behind, observe=True) == ["contradicted"]
    assert contradicted(behind, on_not_resumed="continue") == ["contradicted"]
    assert contradicted(b.rank(words=5, train_ordinal=0)) == ["not-confirmed"]
    other = b.rank(b.ROOT + 1, 1, words=5, first_step=21)
    assert "GivenUp" not in contradicted(behind, other)
    other = b.rank(b.ROOT + 1, 1, words=5, train_ordinal=0, resumed_step=20)
    assert "GivenUp" not in contradicted(behind, other)
    looked = b.rank(words=5, train_ordinal=0, began_anew=5, resumed_step=20, load_begun=1)
    assert contradicted(looked, other) == ["contradicted", "GivenUp", "now 9"]


def test_a_rank_that_began_anew_is_no_resume() -> None:
    """One rank has loaded the checkpoint and another has not: they train something else."""
    state = b.fold(resuming(20))
    resumed = b.rank(words=1, step=21, first_step=21)
    for first, ok in ((21, True), (1, False)):
        other = b.rank(b.ROOT + 1, 1, words=1, step=first, first_step=first)
        told = tell(state, resumed, other, resumed_step=20, not_resumed="the checkpoint is gone")
        (verified,) = of(e.ResumeVerified, told)
        assert verified.ok is ok
        assert ("rank 1 has not loaded" in why_text(verified.why)) is not ok


def test_a_resume_is_not_judged_by_the_folds_before() -> None:
    """The checkpoint is the second fit's: the steps of the first say nothing about it."""
    state = b.fold(resuming(7, ordinal=2))
    assert not any(isinstance(event, e.ResumeVerified) for event in tell(state, b.rank(words=3)))
    second = b.rank(words=8, train_ordinal=2, first_step=8)
    told = tell(state, second, resumed_step=7)
    assert [event.ok for event in told if isinstance(event, e.ResumeVerified)] == [True]


def test_a_keeper_that_dies_alone_is_said_once() -> None:
    """Training lives on; that its exit code will not be known is worth a word."""
    first = tell(b.running(), b.rank(words=2))
    told = tell(fold(first), b.rank(words=2), keeper_alive=False)
    assert names(told) == ["Noticed", "Progress"]
    assert (told[0].kind, told[0].pids) == ("keeper", (b.KEEPER,))
    assert tell(fold(first, told), b.rank(words=2), keeper_alive=False) == []


@pytest.mark.parametrize(
    ("members", "keeper_alive", "more"),
    [
        ((b.rank(words=2),), None, ()),  # not known
        ((b.rank(words=2, state="Z"),), False, ()),  # both are gone
        ((b.member(11, "worker"),), False, ()),  # the root is
        ((b.rank(words=2),), False, (b.exited(),)),
    ],
)
def test_a_keeper_that_ends_with_its_training_is_no_news(
    members: tuple[MemberSample, ...], keeper_alive: bool | None, more: tuple[e.AnyEvent, ...]
) -> None:
    told = tell(b.running(*more), *members, keeper_alive=keeper_alive)
    assert "Noticed" not in names(told)


def test_a_program_without_heartbeat_is_said_once() -> None:
    silent = b.member(b.ROOT)
    assert not of(e.Noticed, tell(b.running(), silent, at=59.0))
    told = tell(b.running(), silent, at=61.0)
    (notice,) = of(e.Noticed, told)
    assert (notice.kind, notice.pids) == ("no-heartbeat", (b.ROOT,))
    assert "python -I" in why_text(notice.why)
    assert not of(e.Noticed, tell(fold(told), silent, at=70.0))
    beating = fold(tell(b.running(), b.rank(words=2)))
    assert not of(e.Noticed, tell(beating, silent, at=61.0))


@pytest.mark.parametrize(
    ("late", "rejects", "fate"),
    [
        (False, True, "lost: it was acknowledged before it began"),
        (True, False, "lost if Celery acknowledged it at the end"),
        (True, True, "its broker delivers it again"),
    ],
)
def test_a_task_that_ends_with_its_worker_is_said_to_be_lost(
    late: bool, rejects: bool, fate: str
) -> None:
    """By how it is acknowledged; not one that its process had finished, nor after an exit of 0."""
    tasks = ((b.ROOT, TaskNote(name="jobs.train", late=late, rejects=rejects)),)
    busy, idle = b.rank(phase="train"), b.rank(phase="idle")

    def told(member: MemberSample, end: ExitStatus) -> list[e.AnyEvent]:
        seen = b.observation(b.sample(9.0), exit=end, last_words=(member,), tasks=tasks)
        action = decide(seen, b.running(e.FirstBeat(rank=0, pid=b.ROOT, after_s=1.0)), POLICY, {})
        assert isinstance(action, Record)
        return of(e.Noticed, action.events)

    killed = ExitStatus(code=None, signal=9, how_known="keeper")
    (noticed,) = told(busy, killed)
    assert (noticed.kind, noticed.pids) == ("task", (b.ROOT,))
    assert f"jobs.train ({fate}" in why_text(noticed.why)
    assert "nothing resumes it" in why_text(noticed.why)
    assert told(idle, killed) == []
    assert told(busy, ExitStatus(code=0, signal=None, how_known="keeper")) == []


def test_a_look_that_cannot_be_had_is_said_once() -> None:
    state = b.running()
    blind = b.observation(b.sample(1.0), blind="Too many open files")
    told, *_ = news(blind, state, Policy())
    assert told.kind == "blind"
    assert "Too many open files" in why_text(told.why)
    known = evolve(state, told)
    assert not any(isinstance(one, e.Noticed) for one in news(blind, known, Policy()))
