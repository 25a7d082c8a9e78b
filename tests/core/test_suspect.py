"""From a verdict to a stall: suspect, look, then decide with patience."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.actions import Action, Record, StartEvidence, StartLook, Wait
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.policy import Policy
from watchdog_train.core.suspect import ASKS, FINISHING_S, watch
from watchdog_train.report.why_text import why_text

POLICY = Policy()
ALIVE = Verdict(kind="alive")
LINE = m.Place(function="fetch", file="train.py", line=9)
LIMITS_S: dict[m.PatienceRow, float | None] = {
    "proven": 20.0,
    "unknown": 75.0,
    "at-work": 75.0,
    "nobody-left": 60.0,
    "network": 600.0,
    "poll": 900.0,
    "sleep": None,
    "stopped": None,
    "input": None,
    "live-lock": None,
    "releaser-died": 60.0,
}


def quiet(basis: m.Basis = "quiet", phase: m.Phase = "train", **changes: Any) -> Verdict:
    found = Verdict(
        kind="suspect",
        basis=basis,
        phase=phase,
        ranks=(0,),
        age_s=30.0,
        quiet_s=30.0,
        steady=True,
        why=m.said("quiet"),
    )
    return msgspec.structs.replace(found, **changes)


def ask(
    state: State,
    verdict: Verdict,
    at: float = 0.0,
    policy: Policy = POLICY,
    step: int = 0,
    **seen: Any,
) -> Action | None:
    poll = b.sample(at, b.rank(words=step))
    return watch(b.observation(poll, verdict, **seen), state, policy)


def event(action: Action | None) -> e.AnyEvent:
    return action.events[-1]


def suspected(basis: m.Basis = "quiet", **changes: Any) -> e.Suspected:
    found = e.Suspected(basis=basis, phase="train", ranks=(0,), age_s=30.0, why=m.said("quiet"))
    return msgspec.structs.replace(found, **changes)


def patience(
    row: m.PatienceRow = "unknown", doing: x.Doing | None = None, **more: Any
) -> m.Patience:
    """With a root that the user's own line has asked for something."""
    doing = doing or w.TcpWait(call="read", address="10.0.0.1:80")
    root = x.Standstill(who=x.Who(pid=b.ROOT, rank=0), doing=doing, own=LINE)
    return m.Patience(row=row, limit_s=LIMITS_S[row], root=root, line=LINE, **more)


def looked(row: m.PatienceRow = "unknown", since: float = 0.0, **more: Any) -> e.Looked:
    return e.Looked(
        patience=patience(row, **more),
        why=m.said("it waits"),
        since_mono=since,
        limit_s=LIMITS_S[row],
    )


def silent(
    row: m.PatienceRow, *earlier: e.AnyEvent, at: float = 0.0, basis: m.Basis = "quiet", **more: Any
) -> State:
    """Silent since 0 s, and looked at a moment ago."""
    return b.running(*earlier, suspected(basis, age_s=at), looked(row, **more), at=at)


def then(state: State, more: e.AnyEvent, at: float) -> State:
    return evolve(state, msgspec.structs.replace(more, mono=at, t=1e9 + at, attempt=1))


def limit_s(state: State, verdict: Verdict, policy: Policy = POLICY, step: int = 0) -> float | None:
    """Seconds of quiet from which on it is a stall, by a look that is always fresh."""
    look = state.look
    assert look is not None
    for at in map(float, range(5000)):
        fresh = msgspec.structs.replace(state, look=msgspec.structs.replace(look, mono=at))
        longer = msgspec.structs.replace(verdict, quiet_s=at)
        if isinstance(ask(fresh, longer, at, policy, step), Record):
            return at
    return None


def noticed(kind: Any) -> e.Noticed:
    return e.Noticed(kind=kind, pids=(b.ROOT,), why=m.said("notice"))


def test_a_suspicion_is_recorded_before_anything_is_done() -> None:
    assert isinstance(event(ask(b.running(), quiet())), e.Suspected)


def test_a_suspicion_is_looked_at_once() -> None:
    state = b.running(suspected())
    assert isinstance(ask(state, quiet()), StartLook)
    assert isinstance(ask(state, quiet(), running=frozenset({"look"})), Wait)
    action = ask(state, quiet(), look=b.result(patience=patience("poll")))
    found = event(action)
    assert isinstance(found, e.Looked)
    assert found.patience == patience("poll")
    assert action.consumes == ("look",)


def test_a_look_that_failed_is_unknown() -> None:
    """Without stacks or waits nothing is known: as long as before the third step; and why."""
    failed = b.result(explanation=None, problem="no", patience=m.Patience())
    found = event(ask(b.running(suspected()), quiet(), look=failed))
    assert isinstance(found, e.Looked)
    assert (found.patience, found.why) == (m.Patience(limit_s=150.0), m.said("no"))


SEEN = x.CollectiveWait()
UNSAVED = 300.0


@pytest.mark.parametrize(
    ("row", "verdict", "after_s"),
    [
        ("proven", quiet(), 20.0),
        ("proven", quiet(stirs=True, unsaved_s=UNSAVED, survived_s=50.0), 20.0),
        ("unknown", quiet(unsaved_s=UNSAVED), 75.0),
        ("nobody-left", quiet(unsaved_s=UNSAVED), 60.0),
        ("network", quiet(), 600.0),
        ("poll", quiet(unsaved_s=1e6), 900.0),
        # What may end by itself is given what a false alarm would cost.
        ("at-work", quiet(unsaved_s=UNSAVED), 300.0),
        ("unknown", quiet(stirs=True, unsaved_s=UNSAVED), 300.0),
        ("unknown", quiet(stirs=True, unsaved_s=1e6), 900.0),
        ("unknown", quiet(phase="eval", steady=False, unsaved_s=UNSAVED), 300.0),
        ("unknown", quiet(phase="first_step", steady=False, unsaved_s=UNSAVED), 75.0),
        # It has survived as much before.
        ("unknown", quiet(survived_s=200.0), 200.0),
        ("unknown", quiet("finishing", "finishing"), FINISHING_S),
        ("unknown", quiet("rank-gone"), 75.0),
        ("unknown", quiet("rank-gone", may_be_through=True), FINISHING_S),
        ("proven", quiet("rank-gone", may_be_through=True), 20.0),
        ("sleep", quiet(), None),
        ("stopped", quiet(), None),
    ],
)
def test_patience_decides_when_it_is_a_stall(
    row: m.PatienceRow, verdict: Verdict, after_s: float | None
) -> None:
    assert limit_s(silent(row, basis=verdict.basis), verdict) == after_s


def test_a_proof_is_the_basis_of_a_stall_in_training() -> None:
    """A deadlock at exit is no failure of the training, so it keeps its name there."""
    for basis, expected in (("quiet", "proven"), ("finishing", "finishing")):
        verdict = quiet(basis, "finishing" if basis == "finishing" else "train")
        declared = event(ask(silent("proven", at=30.0, basis=basis), verdict, 30.0))
        assert isinstance(declared, e.StallDeclared)
        assert declared.basis == expected


def test_patience_counts_quiet_time_only() -> None:
    """Work in between begins it anew, however long there was no progress."""
    state = silent("unknown", at=200.0)
    assert ask(state, quiet(quiet_s=74.0, age_s=200.0), 201.0) is None
    assert isinstance(event(ask(state, quiet(quiet_s=75.0, age_s=200.0), 201.0)), e.StallDeclared)


def test_no_stall_by_an_old_look() -> None:
    """What was true a minute ago may be over, so it is looked at once more."""
    state = silent("unknown", at=60.0)
    assert isinstance(ask(state, quiet(quiet_s=76.0), 76.0), StartLook)
    state = then(state, looked(), 76.5)
    assert isinstance(event(ask(state, quiet(quiet_s=77.0), 77.0)), e.StallDeclared)


def test_the_last_look_comes_in_time_for_the_limit() -> None:
    """The answer is there when the limit is over, and then the processes are sampled, not later."""
    state = then(silent("unknown", at=20.0), looked(), 55.0)
    assert ask(state, quiet(quiet_s=66.0), 66.0) is None
    assert isinstance(ask(state, quiet(quiet_s=67.0), 67.0), StartLook)
    state = then(state, looked(), 69.0)
    assert ask(state, quiet(quiet_s=73.9), 73.9) is None
    assert ask(state, quiet(quiet_s=74.1), 74.1) == Wait(until=75.0, decides=True)
    assert isinstance(event(ask(state, quiet(quiet_s=75.0), 75.0)), e.StallDeclared)


def test_looks_are_repeated_ever_more_seldom() -> None:
    state = b.running(suspected(age_s=20.0), at=20.0)
    looks, at = [], 20.0
    while at < 1500.0:
        state = then(state, looked("poll"), at)
        looks.append(at)
        verdict = quiet(quiet_s=0.0)
        while ask(state, verdict, at) is None:
            at += 1.0
    assert looks == [20.0, 30.0, 40.0, 60.0, 100.0, 180.0, 340.0, 640.0, 940.0, 1240.0]


def asleep(left_s: float) -> m.Patience:
    return patience("sleep", w.SleepWait(left_s=left_s), look_in_s=left_s)


def test_a_sleep_is_waited_out_and_then_a_poll() -> None:
    """A look at its end; whoever sleeps again at the same line asks again and again."""
    state = b.running(suspected(), at=30.0)
    state = then(state, looked("sleep", doing=w.SleepWait(left_s=4.0), look_in_s=4.0), 30.0)
    assert ask(state, quiet(quiet_s=1e5), 34.0) is None
    assert isinstance(ask(state, quiet(quiet_s=1e5), 35.0), StartLook)
    found = event(ask(state, quiet(), 35.0, look=b.result(patience=asleep(60.0))))
    assert isinstance(found, e.Looked)
    assert (found.patience.row, found.patience.limit_s) == ("poll", 900.0)
    again = event(ask(then(state, found, 36.0), quiet(), 40.0, look=b.result(patience=asleep(9.0))))
    assert isinstance(again, e.Looked)
    assert again.patience.row == "poll"


def test_one_long_sleep_stays_one() -> None:
    """A second look before its end finds the same sleep, not the next one."""
    state = b.running(suspected(), at=30.0)
    state = then(state, looked("sleep", doing=w.SleepWait(left_s=600.0), look_in_s=600.0), 30.0)
    assert isinstance(ask(state, quiet(), 40.0), StartLook)
    found = event(ask(state, quiet(), 40.0, look=b.result(patience=asleep(590.0))))
    assert isinstance(found, e.Looked)
    assert found.patience.row == "sleep"


def test_a_shorter_patience_counts_from_its_beginning() -> None:
    """A poll of 14 minutes that then reads something unknown is not a stall at that moment."""
    state = silent("poll", at=800.0)
    found = event(ask(state, quiet(), 850.0, look=b.result(patience=patience())))
    assert found.since_mono == 850.0
    state = then(state, msgspec.structs.replace(found, since_mono=850.0), 920.0)
    assert ask(state, quiet(quiet_s=924.0), 924.0) is None
    assert isinstance(event(ask(state, quiet(quiet_s=925.0), 925.0)), e.StallDeclared)
    # A longer one counts from the beginning of the silence, and so does the same.
    longer = event(ask(silent("unknown"), quiet(), 40.0, look=b.result(patience=patience("poll"))))
    assert longer.since_mono == 0.0


def test_nobody_lives_for_ever_by_changing() -> None:
    state = silent("poll", at=3700.0)
    found = event(ask(state, quiet(), 3701.0, look=b.result(patience=patience())))
    assert found.since_mono == 0.0


def test_of_several_machines_the_known_and_shortest_counts() -> None:
    """What is unknown on one machine shortens nothing on another."""
    state = b.running(suspected())
    seen = b.observation(b.sample(0.0, b.rank()), quiet())
    looks = [b.result(patience=patience(row)) for row in ("unknown", "poll", "network")]
    trees = tuple(msgspec.structs.replace(seen.trees[0], look=look) for look in looks)
    found = event(watch(msgspec.structs.replace(seen, trees=trees), state, POLICY))
    assert isinstance(found, e.Looked)
    assert found.patience.row == "network"


def test_stopped_is_a_stall_only_by_its_own_limit() -> None:
    """Without one nobody is killed for it; --stall-timeout is a verdict of its own and counts."""
    state = silent("stopped")
    limited = msgspec.structs.replace(
        POLICY, detection=msgspec.structs.replace(POLICY.detection, stopped_timeout_s=100.0)
    )
    assert limit_s(state, quiet()) is None
    look = b.result(patience=patience("stopped"))
    found = event(ask(b.running(suspected()), quiet(), policy=limited, look=look))
    assert isinstance(found, e.Looked)
    assert limit_s(then(state, found, 0.0), quiet(), limited) == 100.0
    declared = event(ask(state, quiet("user-limit", kind="stall")))
    assert isinstance(declared, e.StallDeclared)


def fallen_silent_at(step: int = 0, wait: str = "TcpWait", own: m.Place = LINE) -> e.StallDeclared:
    return b.stall(at=m.SilentAt(own=own, wait=wait, steps=step))


ELSEWHERE = fallen_silent_at(own=m.Place(function="f", file="train.py", line=10))


@pytest.mark.parametrize(
    ("row", "before", "after_s"),
    [
        ("unknown", (fallen_silent_at(),), 900.0),
        ("network", (fallen_silent_at(),), 900.0),
        ("nobody-left", (fallen_silent_at(),), 900.0),
        ("proven", (fallen_silent_at(),), 20.0),
        # From the third time on only what can end by itself or by somebody named.
        ("unknown", (fallen_silent_at(),) * 2, 75.0),
        ("network", (fallen_silent_at(),) * 2, 3600.0),
        # 15 + 60 min were given, 15 of 90 are left; then nothing is.
        ("network", (fallen_silent_at(),) * 3, 900.0),
        ("network", (fallen_silent_at(),) * 4, 600.0),
        ("unknown", (ELSEWHERE,), 75.0),
        ("unknown", (fallen_silent_at(step=5),), 75.0),
        ("unknown", (fallen_silent_at(wait="FileWait"),), 75.0),
    ],
)
def test_silent_again_at_the_same_place(
    row: m.PatienceRow, before: tuple[e.StallDeclared, ...], after_s: float
) -> None:
    """Same line, same wait, same step: maybe the first one was a pause."""
    assert limit_s(silent(row, *before), quiet()) == after_s


@pytest.mark.parametrize(
    ("first_sampled", "step", "after_s"), [(2, 101, 900.0), (19, 101, 900.0), (19, 102, 75.0)]
)
def test_the_same_place_is_told_by_the_step_that_the_training_counts(
    first_sampled: int, step: int, after_s: float
) -> None:
    """Which step of an attempt is sampled first is chance."""
    first = e.FirstStep(rank=0, pid=b.ROOT, step=first_sampled, after_s=1.0)
    state = silent("unknown", fallen_silent_at(step=101), first)
    assert limit_s(state, quiet(), step=step) == after_s


def test_a_collective_is_never_the_same_place() -> None:
    """Every step waits there."""
    found = silent("nobody-left", fallen_silent_at(wait="CollectiveWait"), doing=SEEN)
    assert limit_s(found, quiet()) == 60.0


def test_a_pause_is_said_once_a_line() -> None:
    state = silent("network", at=30.0)
    ended = event(ask(state, quiet(kind="alive", moved_at=50.0), 50.0))
    assert (ended.paused_s, ended.patience, ended.said) == (50.0, patience("network"), False)
    assert ended.at == m.SilentAt(own=LINE, wait="TcpWait", steps=0)
    state = then(state, ended, 50.0)
    state = then(then(state, suspected(), 130.0), looked("network"), 131.0)
    again = event(ask(state, quiet(kind="alive", moved_at=170.0), 170.0))
    assert (again.paused_s, again.said) == (70.0, True)
    short = event(ask(silent("network", at=20.0), ALIVE, 25.0))
    assert short.paused_s == 0.0


@pytest.mark.parametrize(
    ("changes", "stall"),
    [
        ({"quiet_s": 899.0}, False),
        ({"quiet_s": 901.0}, True),
        ({"quiet_s": 1e6, "alone": True}, False),
        ({"quiet_s": 1799.0, "phase": "checkpoint", "hard_s": 1800.0}, False),
        ({"quiet_s": 1801.0, "phase": "checkpoint", "hard_s": 1800.0}, True),
    ],
)
def test_what_the_kernel_holds_is_said_and_a_stall_only_when_it_lasts(
    changes: dict[str, Any], stall: bool
) -> None:
    """A disk may come back, ranks elsewhere may work, and a large save may be one long fsync()."""
    held = quiet("uninterruptible", **changes)
    state = b.running(suspected("uninterruptible"))
    if not stall:
        assert isinstance(ask(state, held), StartEvidence)
    state = b.running(suspected("uninterruptible"), noticed("uninterruptible"))
    action = ask(state, held, 1e6)
    assert isinstance(action, Record) if stall else action is None


def test_a_prompt_is_never_a_stall() -> None:
    """It is named once, and then waited for; a look now and then shows whether it still is one."""
    state = silent("input", at=30.0)
    assert event(ask(state, quiet(), 30.0)) == e.Noticed(kind="input", pids=(), why=m.said(ASKS))
    assert limit_s(then(state, noticed("input"), 30.0), quiet()) is None


@pytest.mark.parametrize(
    "history", [(suspected(),), (suspected(), looked()), (noticed("input"),), (noticed("busy"),)]
)
def test_life_ends_the_suspicion(history: tuple[e.AnyEvent, ...]) -> None:
    state = b.running(*history)
    assert isinstance(event(ask(state, ALIVE)), e.SuspicionEnded)
    assert ask(b.running(*history, e.SuspicionEnded(why=m.said(""))), ALIVE) is None


def test_a_dead_keeper_is_no_silence() -> None:
    """Its notice stays, and is not ended by progress again and again."""
    assert ask(b.running(noticed("keeper")), ALIVE) is None
    state = b.running(suspected(), noticed("keeper"), e.SuspicionEnded(why=m.said("")))
    assert state.notices == ("keeper",)


def test_busy_over_the_hard_budget_is_dumped_and_said_and_no_more() -> None:
    """Suspected, one bundle, one notice; no time makes it a stall."""
    busy = quiet("hard-budget")
    assert isinstance(event(ask(b.running(), busy)), e.Suspected)
    state = b.running(suspected("hard-budget"))
    action = ask(state, busy)
    assert (action.bundle_why, action.kind) == ("manual", "busy")
    state = b.running(suspected("hard-budget"), b.collecting(why="manual"))
    assert event(ask(state, busy)) == e.Noticed(kind="busy", pids=(), why=m.said("quiet"))
    state = b.running(suspected("hard-budget"), noticed("busy"))
    assert ask(state, busy, 1e6) is None


def spinning(row: m.PatienceRow, limit: float | None, *, odd: int = 0) -> list[e.AnyEvent]:
    """What is recorded of a busy job; sample number `odd` finds something else."""
    state = b.running(suspected("hard-budget", age_s=0.0), noticed("busy"))
    found: list[e.AnyEvent] = []
    samples = 0
    loop = x.Computing(asks=LINE)
    for at in range(1, 3600):
        verdict = quiet("hard-budget", spins_s=float(at), quiet_s=0.0)
        action = ask(state, verdict, float(at))
        if isinstance(action, StartLook):
            samples += 1
            told = patience("at-work" if samples == odd else row, loop)
            told = msgspec.structs.replace(told, limit_s=limit)
            action = ask(state, verdict, float(at), look=b.result(patience=told))
        if isinstance(action, Record):
            state = then(state, action.events[-1], float(at))
            found.append(action.events[-1])
            if isinstance(found[-1], e.StallDeclared):
                break
    return found


def test_a_live_lock_is_said_after_20_samples_and_a_stall_where_it_may_be_one() -> None:
    *looks, notice = spinning("live-lock", None)
    assert len(looks) == 20
    assert (notice.kind, notice.why.because[-1].count) == ("live-lock", 20)
    *_, last_look, stall = spinning("live-lock", 900.0)
    assert isinstance(stall, e.StallDeclared)
    assert isinstance(last_look, e.Looked), "no stall by an old sample"
    assert (stall.basis, last_look.times) == ("live-lock", 21)


def test_a_busy_job_whose_releaser_died_is_a_stall_after_its_limit_and_two_samples() -> None:
    *looks, stall = spinning("releaser-died", 60.0)
    assert isinstance(stall, e.StallDeclared)
    assert stall.basis == "proven"
    last = looks[-1]
    assert last.times >= 2
    odd = spinning("releaser-died", 60.0, odd=2)
    assert [one.times for one in odd if isinstance(one, e.Looked)][:3] == [1, 1, 1]


def test_one_sample_that_finds_something_else_begins_the_count_anew() -> None:
    events = spinning("live-lock", 900.0, odd=20)
    times = [event.times for event in events if isinstance(event, e.Looked)]
    assert times[:22] == [*range(1, 20), 1, 1, 2]
    assert spinning("at-work", 900.0)[-1].patience.row == "at-work"


def test_busy_waits_for_a_collection_that_nobody_wants_any_more() -> None:
    state = b.running(suspected("hard-budget"))
    found = event(ask(state, quiet("hard-budget"), running=frozenset({"evidence"})))
    assert isinstance(found, e.Noticed)


def test_busy_time_is_not_patience() -> None:
    """Quiet, then long at work, then quiet again: the second silence begins anew."""
    state = b.running(suspected(), looked())
    again = event(ask(state, quiet("hard-budget"), 10.0))
    assert isinstance(again, e.Suspected)
    assert again.basis == "hard-budget"
    state = b.running(suspected(), looked(), suspected("hard-budget"), noticed("busy"))
    found = event(ask(state, quiet(), 900.0))
    assert isinstance(found, e.Suspected)
    state = b.running(suspected(), looked(), suspected("hard-budget"), suspected())
    assert state.look is None


def test_the_users_limit_needs_no_look() -> None:
    declared = event(ask(b.running(), quiet("user-limit", kind="stall")))
    assert isinstance(declared, e.StallDeclared)
    assert declared.basis == "user-limit"


def test_what_was_reported_is_not_reported_again() -> None:
    """With --observe one silence is one report, until there is life again."""
    history = (b.stall(), e.WouldHaveKilled(stall_id="0001", why=m.said("quiet")))
    state = b.running(*history)
    assert state.muted
    assert ask(state, quiet(), 1e6) is None
    assert ask(state, quiet("user-limit", kind="stall"), 1e6) is None
    assert isinstance(event(ask(state, ALIVE)), e.SuspicionEnded)


STOPPED = m.Why("stopped", pids=(b.ROOT,), rank=0, seconds=5.0)
FROZEN = msgspec.structs.replace(STOPPED, held=w.Stopped(freezer="/g/cgroup.freeze"))


def held(*found: m.Why) -> e.Noticed:
    return e.Noticed(kind="stopped", pids=(b.ROOT,), why=found[0].plus(*found[1:]))


def held_at(state: State, at: float, verdict: Verdict, *members: m.MemberSample) -> Action | None:
    return watch(b.observation(b.sample(at, *members), verdict), state, POLICY)


def test_who_is_stopped_is_said_once_and_hides_nothing() -> None:
    """Whatever else the moment says, the others are judged."""
    verdict, rank = quiet(stopped=(STOPPED,)), b.rank(state="T")
    assert event(held_at(b.running(), 5.0, verdict, rank)) == held(STOPPED)
    assert isinstance(event(held_at(b.running(held(STOPPED)), 5.0, verdict, rank)), e.Suspected)


def test_who_stays_stopped_among_the_living_is_said_once() -> None:
    alive = msgspec.structs.replace(ALIVE, stopped=(STOPPED,))
    assert held_at(b.running(held(STOPPED)), 5.0, alive, b.rank(state="T")) is None
    frozen = msgspec.structs.replace(ALIVE, stopped=(FROZEN,))
    found = event(held_at(b.running(held(STOPPED)), 5.0, frozen, b.rank(state="T")))
    assert found == held(FROZEN), "held in another way: it continues in another way, too"


def test_who_continues_is_said_and_is_stopped_no_more() -> None:
    """In the log, and in status; who died while it was stopped did not continue."""
    state = b.running(held(STOPPED))
    found = event(held_at(state, 30.0, ALIVE, b.rank()))
    assert (found.kind, found.pids, found.why.seconds) == ("continued", (b.ROOT,), 35.0)
    assert why_text(found.why) == f"rank 0 (pid {b.ROOT}) continued after 35 s"
    after = then(state, found, 30.0)
    assert after.notices == ("continued",)
    assert ask(after, ALIVE, 31.0) is None
    dead = held_at(state, 30.0, ALIVE, b.rank(state="Z"), b.rank(11, 1))
    assert isinstance(event(dead), e.SuspicionEnded)


def test_a_part_of_the_stopped_continues() -> None:
    both = msgspec.structs.replace(STOPPED, pids=(b.ROOT, 11))
    state = b.running(e.Noticed(kind="stopped", pids=both.pids, why=both))
    alive = msgspec.structs.replace(ALIVE, stopped=(STOPPED,))
    found = held_at(state, 9.0, alive, b.rank(state="T"), b.rank(11, 1))
    assert isinstance(found, Record)
    assert [(one.kind, one.pids) for one in found.events] == [  # type: ignore[union-attr]
        ("continued", (11,)),
        ("stopped", (b.ROOT,)),
    ]


@pytest.mark.parametrize(
    ("row", "moved_at", "paused_s"),
    [("network", 50.0, 50.0), ("network", 0.0, 0.0), ("stopped", 50.0, 0.0)],
)
def test_only_what_moved_went_on_by_itself(
    row: m.PatienceRow, moved_at: float, paused_s: float
) -> None:
    """Activity of others ends the suspicion of a rank that is silent still, or stopped still."""
    alive = quiet(kind="alive", moved_at=moved_at)
    ended = event(ask(silent(row, at=30.0), alive, 50.0))
    assert ended.paused_s == paused_s


@pytest.mark.parametrize("last", [b.stop(), b.exited()])
def test_nobody_is_suspected_at_the_end(last: e.AnyEvent) -> None:
    assert ask(b.running(last), quiet("user-limit", kind="stall")) is None


def test_bundles_on_disk_keep_their_numbers() -> None:
    """`wtrain dump` makes bundles without asking us."""
    declared = event(ask(b.running(), quiet("user-limit", kind="stall"), bundles=7))
    assert isinstance(declared, e.StallDeclared)
    assert declared.stall_id == "0008"
