"""From a verdict to a stall: suspect, look, then decide with patience."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Record, StartEvidence, StartLook, Wait
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Basis, Patience, Phase, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.suspect import ASKS, FINISHING_PATIENCE_S, watch

POLICY = Policy()
ALIVE = Verdict(kind="alive")


def quiet(basis: Basis = "quiet", phase: Phase = "train", **changes: Any) -> Verdict:
    found = Verdict(
        kind="suspect",
        basis=basis,
        phase=phase,
        ranks=(0,),
        age_s=30.0,
        steady=True,
        why=said("quiet"),
    )
    return msgspec.structs.replace(found, **changes)


def ask(state: State, verdict: Verdict, at: float = 0.0, **seen: Any) -> Action | None:
    return watch(b.observation(b.sample(at, b.rank()), verdict, **seen), state, POLICY, {})


def event(action: Action | None) -> e.AnyEvent:
    assert isinstance(action, Record)
    return action.events[-1]


def suspected(basis: Basis = "quiet") -> e.Suspected:
    return e.Suspected(basis=basis, phase="train", ranks=(0,), age_s=30.0, why=said("quiet"))


def looked(patience: Patience = "unknown") -> e.Looked:
    return e.Looked(patience=patience, why=said("it waits"))


def noticed(kind: Any) -> e.Noticed:
    return e.Noticed(kind=kind, pids=(b.ROOT,), why=said("notice"))


def test_a_suspicion_is_recorded_before_anything_is_done() -> None:
    """The log says why a look follows."""
    assert isinstance(event(ask(b.running(), quiet())), e.Suspected)


def test_a_suspicion_is_looked_at_once() -> None:
    """One look at a time, and its answer becomes an event."""
    state = b.running(suspected())
    assert isinstance(ask(state, quiet()), StartLook)
    assert isinstance(ask(state, quiet(), running=frozenset({"look"})), Wait)
    action = ask(state, quiet(), look=b.result(patience="may-end"))
    found = event(action)
    assert isinstance(found, e.Looked)
    assert found.patience == "may-end"
    assert isinstance(action, Record)
    assert action.consumes == ("look",)


def test_a_look_that_failed_is_unknown() -> None:
    """No stacks prove nothing, and the reason is said."""
    failed = b.result(explanation=None, problem="no")
    found = event(ask(b.running(suspected()), quiet(), look=failed))
    assert isinstance(found, e.Looked)
    assert (found.patience, found.why) == ("unknown", said("no"))


@pytest.mark.parametrize(
    ("patience", "verdict", "after_s"),
    [
        ("proven", quiet(), 0.0),
        ("unknown", quiet(), 20.0),
        ("may-end", quiet(unsaved_s=300.0), 300.0),
        ("healthy", quiet(unsaved_s=300.0), 300.0),
        ("may-end", quiet(unsaved_s=1e6), 900.0),
        ("unknown", quiet(stirs=True, unsaved_s=300.0), 300.0),
        ("unknown", quiet(phase="eval", steady=False, unsaved_s=300.0), 300.0),
        ("unknown", quiet(phase="eval", steady=False), 240.0),
        ("may-end", quiet(phase="eval", steady=False), 1800.0),
        ("unknown", quiet(phase="first_step", steady=False, unsaved_s=300.0), 20.0),
        ("unknown", quiet("finishing", "finishing", stirs=True, unsaved_s=300.0), 300.0),
        ("unknown", quiet("finishing", "finishing"), FINISHING_PATIENCE_S),
        ("unknown", quiet("rank-gone"), 20.0),
        ("proven", quiet("rank-gone", may_be_through=True), 0.0),
        # From the last step on: what finishing may take, and the patience of a finish.
        ("unknown", quiet("rank-gone", may_be_through=True, soft_s=12.0), 90.0 + 60.0 - 12.0),
        ("may-end", quiet("rank-gone", may_be_through=True, unsaved_s=300.0), 300.0),
    ],
)
def test_patience_decides_when_it_is_a_stall(
    patience: Patience, verdict: Verdict, after_s: float
) -> None:
    """A proof at once, a wait that may end in proportion to what a false alarm would cost."""
    state = b.running(suspected(verdict.basis), looked(patience))
    if after_s:
        assert ask(state, verdict, after_s - 0.1) is None
    declared = event(ask(state, verdict, after_s))
    assert isinstance(declared, e.StallDeclared)
    proven = patience == "proven" and verdict.basis == "quiet"
    assert declared.basis == ("proven" if proven else verdict.basis)


def test_no_stall_before_the_least_silence_unless_it_is_proven() -> None:
    """Before steps are learnt a long first step looks like a hang; a proof needs no time."""
    early = quiet(phase="first_step", steady=False, least_s=150.0)
    state = b.running(suspected(), looked())
    assert ask(state, early, 1000.0) is None
    late = msgspec.structs.replace(early, quiet_s=150.0)
    assert isinstance(event(ask(state, late, 1000.0)), e.StallDeclared)
    proven = b.running(suspected(), looked("proven"))
    assert isinstance(event(ask(proven, early, 1.0)), e.StallDeclared)


def test_what_the_kernel_holds_is_dumped_and_said_and_never_ended() -> None:
    """No signal ends a process in D state, and a disk may come back."""
    held = quiet("uninterruptible")
    state = b.running(suspected("uninterruptible"))
    assert isinstance(ask(state, held), StartEvidence)
    state = b.running(suspected("uninterruptible"), noticed("uninterruptible"))
    assert ask(state, held, 1e6) is None


def test_a_proof_after_the_end_is_still_the_end() -> None:
    """A deadlock at exit is no failure of the training."""
    state = b.running(suspected("finishing"), looked("proven"))
    declared = event(ask(state, quiet("finishing", "finishing")))
    assert isinstance(declared, e.StallDeclared)
    assert declared.basis == "finishing"


def test_a_prompt_found_in_the_stacks_is_never_a_stall() -> None:
    """It is named once, and then waited for."""
    state = b.running(suspected(), looked("input"))
    assert event(ask(state, quiet(), 1e6)) == e.Noticed(kind="input", pids=(), why=said(ASKS))
    assert ask(b.running(suspected(), looked("input"), noticed("input")), quiet(), 1e6) is None


@pytest.mark.parametrize(
    "history",
    [(suspected(),), (suspected(), looked()), (noticed("stopped"),), (noticed("busy"),)],
)
def test_life_ends_the_suspicion(history: tuple[e.AnyEvent, ...]) -> None:
    """Whatever was said about a silence is over with it."""
    state = b.running(*history)
    assert isinstance(event(ask(state, ALIVE)), e.SuspicionEnded)
    assert ask(b.running(*history, e.SuspicionEnded(why=said(""))), ALIVE) is None


def test_a_dead_keeper_is_no_silence() -> None:
    """Its notice stays, and is not ended by progress again and again."""
    assert ask(b.running(noticed("keeper")), ALIVE) is None
    state = b.running(suspected(), noticed("keeper"), e.SuspicionEnded(why=said("")))
    assert state.notices == ("keeper",)


def test_busy_over_the_hard_budget_is_dumped_and_said_and_no_more() -> None:
    """Suspected, one bundle, one notice; no time makes it a stall."""
    busy = quiet("hard-budget")
    assert isinstance(event(ask(b.running(), busy)), e.Suspected)
    state = b.running(suspected("hard-budget"))
    action = ask(state, busy)
    assert isinstance(action, StartEvidence)
    assert (action.bundle_why, action.kind) == ("manual", "busy")
    state = b.running(suspected("hard-budget"), b.collecting(why="manual"))
    assert event(ask(state, busy)) == e.Noticed(kind="busy", pids=(), why=said("quiet"))
    state = b.running(suspected("hard-budget"), noticed("busy"))
    assert ask(state, busy, 1e6) is None


def test_busy_waits_for_a_collection_that_nobody_wants_any_more() -> None:
    """One collector at a time."""
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
    """The user's word is a stall at once."""
    declared = event(ask(b.running(), quiet("user-limit", kind="stall")))
    assert isinstance(declared, e.StallDeclared)
    assert declared.basis == "user-limit"


def test_what_was_reported_is_not_reported_again() -> None:
    """With --observe one silence is one report, until there is life again."""
    history = (b.stall(), e.WouldHaveKilled(stall_id="0001", why=said("quiet")))
    state = b.running(*history)
    assert state.muted
    assert ask(state, quiet(), 1e6) is None
    assert ask(state, quiet("user-limit", kind="stall"), 1e6) is None
    assert isinstance(event(ask(state, ALIVE)), e.SuspicionEnded)


@pytest.mark.parametrize("kind", ["stopped", "input"])
def test_stopped_and_asking_are_said_once(kind: Any) -> None:
    """Reported, not killed."""
    verdict = Verdict(kind=kind, pids=(b.ROOT,), why=said("notice"))
    assert event(ask(b.running(), verdict)) == noticed(kind)
    assert ask(b.running(noticed(kind)), verdict, 1e6) is None


@pytest.mark.parametrize("history", [(b.stop(),), (b.exited(),)])
def test_nobody_is_suspected_at_the_end(history: tuple[e.AnyEvent, ...]) -> None:
    """After a stop request or an exit silence means nothing."""
    assert ask(b.running(*history), quiet("user-limit", kind="stall")) is None


def test_bundles_on_disk_keep_their_numbers() -> None:
    """`wtrain dump` makes bundles without asking us."""
    declared = event(ask(b.running(), quiet("user-limit", kind="stall"), bundles=7))
    assert isinstance(declared, e.StallDeclared)
    assert declared.stall_id == "0008"
