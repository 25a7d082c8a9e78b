"""A full disk before a restart: waited for, said once, and the end has the code of a full place."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Launch, Record, StartSurvey, Wait
from watchdog_train.core.decide import decide
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import CheckpointRef, said
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.recovery.restart import torn_save
from watchdog_train.report.why_text import why_text

FULL = "the run directory cannot be written (No space left on device)"
POLICY = Policy(recovery=Recovery(room_wait_s=100.0))


SMALL = "checkpoint-200 is half-written, the disk has 1.0 MiB left and a checkpoint needs 14.0 MiB"


def act(state: State, lacking: str | None, at: float, *, save: str | None = None) -> Any:
    look = b.sample(at, keeper_alive=False, empty_looks=2)
    seen = b.observation(look, no_room=lacking, no_save_room=save)
    return decide(seen, state, POLICY, {})


def told(state: State, at: float) -> State:
    action = act(state, FULL, at)
    assert isinstance(action, Record), action
    (said,) = action.events
    assert (said.kind, FULL in why_text(said.why)) == ("room", True)
    return evolve(state, replace(said, mono=at))


def test_a_full_disk_is_said_once_and_waited_for() -> None:
    assert isinstance(act(b.waiting(), None, 1.0), Launch)
    state = told(b.waiting(), 1.0)
    assert isinstance(act(state, FULL, 50.0), Wait)
    assert isinstance(act(state, None, 51.0), Launch)


def test_the_wait_has_an_end() -> None:
    """The run ends with 75: another place may have room."""
    (given_up,) = act(told(b.waiting(), 1.0), FULL, 102.0).events
    assert isinstance(given_up, e.GivenUp)
    assert (given_up.exit_code, given_up.outcome) == (75, "gave_up")
    assert FULL in why_text(given_up.why)


def test_checkpoints_are_not_looked_for_before_a_file_can_be_opened() -> None:
    """A look that cannot be started finds none, and the next attempt would begin anew."""
    state = b.crashed()
    look = b.sample(1.0, keeper_alive=False, empty_looks=2)
    short = b.observation(look, short="wtrain can open no more files")
    (said,) = decide(short, state, POLICY, {}).events  # type: ignore[union-attr]
    assert said.kind == "room"
    waits = evolve(state, replace(said, mono=1.0))
    assert isinstance(decide(short, waits, POLICY, {}), Wait)
    assert isinstance(decide(b.observation(look), waits, POLICY, {}), StartSurvey)


def test_a_stop_ends_the_wait() -> None:
    (finished,) = act(evolve(told(b.waiting(), 1.0), b.stop()), FULL, 2.0).events
    assert isinstance(finished, e.RunFinished)
    assert finished.exit_code == 77


def test_a_save_that_would_be_torn_again_is_waited_for() -> None:
    """A training that ends at every save spends its restarts; but the need is an estimate."""
    (said,) = act(b.waiting(), None, 1.0, save=SMALL).events
    assert SMALL in why_text(said.why)
    state = evolve(b.waiting(), replace(said, mono=1.0))
    assert isinstance(act(state, None, 50.0, save=SMALL), Wait)
    assert isinstance(act(state, None, 50.0), Launch)
    assert isinstance(act(state, None, 102.0, save=SMALL), Launch)


def test_what_is_torn_is_known_by_what_was_passed_over() -> None:
    """Beside the whole one that was chosen: it tells how much a save needs."""
    assert torn_save(b.waiting()) is None
    torn = e.CheckpointRejected(path="/o/checkpoint-200", format="hf", why=said("half"), torn=True)
    chosen = CheckpointRef(path="/o/checkpoint-190", format="hf", step=190, how_checked="recorded")
    planned = replace(b.plan(2), checkpoint=chosen)
    found = torn_save(b.crashed(torn, e.PlanMade(plan=planned)))
    assert (found.whole, found.torn) == ("/o/checkpoint-190", ("/o/checkpoint-200",))


NONE_LEFT = "Too many open files"


def postponed(at: float) -> State:
    """Attempt 2 was meant, and could not be started."""
    meant = e.AttemptLaunching(token="t2", plan=b.plan(2))
    state = evolve(b.waiting(), replace(meant, mono=at, attempt=2))
    assert (state.restarts, len(state.attempts)) == (1, 2)
    off = e.LaunchPostponed(why=said(NONE_LEFT))
    return evolve(state, replace(off, mono=at, attempt=2))


def test_a_launch_that_could_not_be_made_is_made_again() -> None:
    """Under the same plan, a moment later; it is no try of that plan, and costs no restart."""
    state = postponed(1.0)
    assert (state.restarts, state.restarts_since_progress, len(state.attempts)) == (0, 0, 1)
    assert isinstance(act(state, None, 1.5), Wait)
    again = act(state, None, 2.1)
    assert isinstance(again, Launch)
    assert again.plan == b.plan(2)


def test_a_launch_is_not_put_off_for_ever() -> None:
    """Counted from the first one that failed; one that is made ends the count."""
    state = postponed(1.0)
    meant = e.AttemptLaunching(token="t3", plan=b.plan(2))
    state = evolve(state, replace(meant, mono=60.0, attempt=2))
    off = e.LaunchPostponed(why=said(NONE_LEFT))
    late = evolve(state, replace(off, mono=60.0, attempt=2))
    assert isinstance(act(late, None, 100.0), Launch)
    (given_up,) = act(late, None, 101.5).events
    assert isinstance(given_up, e.GivenUp)
    assert (given_up.exit_code, given_up.outcome) == (75, "gave_up")
    assert NONE_LEFT in why_text(given_up.why)
    made = e.AttemptLaunched(pid=7, start=8, keeper_pid=9, keeper_start=10)
    assert evolve(state, made).postponed is None
    again = e.Reopened(
        pid=7, start=8, boot_id="b", slot_dir=None, with_remedies=(), allow=(), why=said("")
    )
    assert evolve(late, again).postponed is None, "or it would give up at once, each time"


def test_what_was_launched_is_not_put_off() -> None:
    state = b.running()
    assert evolve(state, e.LaunchPostponed(why=said(NONE_LEFT))).attempts == state.attempts
