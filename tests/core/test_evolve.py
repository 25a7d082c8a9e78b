"""What events make of a state, where that is not obvious."""

from __future__ import annotations

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.model import ProcessId, RunProgress, said


def at(moment: float, event: e.AnyEvent) -> e.AnyEvent:
    return msgspec.structs.replace(event, mono=moment, t=1e9 + moment, attempt=1)


def progress(step: int) -> e.Progress:
    return e.Progress(progress=RunProgress(step=step), ranks=(), members=())


def again(number: int = 2) -> e.AttemptLaunching:
    return e.AttemptLaunching(token="t", plan=b.plan(number))


def adopted(boot_id: str = "b") -> e.Adopted:
    return e.Adopted(pid=2, start=2, boot_id=boot_id, previous_pid=1, why=said("gone"))


TERM = e.Signalling(
    sequence="hang", stage="terminate", targets=(ProcessId(11, 1011),), signal=15, why=said("hung")
)


@pytest.mark.parametrize(
    ("history", "restarts", "since"),
    [
        ((), 0, 0),
        ((again(2),), 1, 1),
        ((again(2), again(3)), 2, 2),
        ((progress(5), again(2), progress(5)), 1, 1),  # not newer
        ((progress(5), again(2), progress(3), again(3)), 2, 2),
        ((progress(5), again(2), progress(6)), 1, 0),
        ((progress(5), again(2), b.exited(3, step=6)), 1, 0),
    ],
)
def test_restarts_are_counted_since_the_last_newer_step(
    history: tuple[e.AnyEvent, ...], restarts: int, since: int
) -> None:
    """The budget refills only when no attempt has come that far."""
    state = b.running(*history)
    assert (state.restarts, state.restarts_since_progress) == (restarts, since)


def test_a_new_attempt_forgets_the_silence_of_the_last() -> None:
    state = b.running(
        e.Suspected(basis="quiet", phase="train", ranks=(0,), age_s=1.0, why=said("")),
        e.Noticed(kind="keeper", pids=(9,), why=said("")),
        b.stall(),
        TERM,
        again(),
    )
    assert (state.suspicion, state.notices, state.kill, state.members) == (None, (), None, ())
    assert state.attempt.stall_id is None
    assert state.state == "starting"


@pytest.mark.parametrize(
    ("event", "back"),
    [
        (e.StallRecovered(stall_id="0001", why=said("")), False),
        (e.WouldHaveKilled(stall_id="0001", why=said("")), True),
    ],
)
def test_after_a_stall_that_kills_nobody_the_run_goes_on(event: e.AnyEvent, back: bool) -> None:
    """Recovered or reported: running again, and the stall is not the attempt's end."""
    state = b.running(b.stall(), b.collecting(), event)
    assert state.state == "running"
    assert state.attempt.stall_id is None
    assert state.muted is back
    assert state.last_stall.recovered is not back


def test_a_manual_bundle_changes_nothing_else() -> None:
    state = b.running(b.collecting(why="manual"))
    assert (state.state, state.last_stall) == ("running", None)


def test_a_crash_bundle_is_collected_too() -> None:
    state = b.running(b.exited(3), b.collecting(why="crash"))
    assert state.state == "collecting"
    assert state.attempt.crash_id == "0001"


def test_only_the_deed_counts_as_signalled() -> None:
    """The intent names nobody as done; the first of each pair does not move the deadline."""
    state = evolve(b.running(b.stall()), at(5.0, TERM))
    assert state.kill.targets == ()
    sent = e.SentSignal(pid=11, start=1011, signal=15, role="rank", result="sent")
    woken = msgspec.structs.replace(sent, signal=18)
    for moment, one in ((5.1, woken), (5.2, sent)):
        state = evolve(state, at(moment, e.Signalled(sent=(one,))))
    assert state.kill.targets == (ProcessId(11, 1011),)
    state = evolve(state, at(7.0, TERM))
    assert (state.kill.stage_mono, state.kill.targets) == (5.0, (ProcessId(11, 1011),))


def test_a_second_request_shortens_the_way_and_keeps_the_code() -> None:
    """Ctrl-C, then `wtrain stop --now`: 130."""
    state = b.running(b.stop(code=130), b.stop("now", 77), b.stop("soft", 77))
    assert (state.stop.mode, state.stop.exit_code) == ("now", 130)


def test_an_adoption_gives_a_stage_its_time_again() -> None:
    state = evolve(b.running(b.stall(), TERM), at(500.0, adopted()))
    assert state.kill.stage_mono == 500.0
    assert state.supervisor == ProcessId(2, 2)


def test_an_adoption_alone_keeps_a_backoff() -> None:
    """A new supervisor is no reason to hurry."""
    backing = e.BackingOff(delay_s=9.0, until_mono=9.0, why=said(""))
    assert b.running(backing, adopted()).backoff_until == 9.0


def test_after_a_boot_no_moment_of_the_old_clock_is_waited_for() -> None:
    """The monotonic clock began anew: a backoff would end in days."""
    backing = e.BackingOff(delay_s=9.0, until_mono=1e6, why=said(""))
    state = evolve(b.running(backing, b.exited(3), at=1e6), at(50.0, adopted("another")))
    assert state.backoff_until is None
    assert state.attempt.launching_mono == 50.0
    assert state.attempt.ended_mono == 50.0
    assert state.progress_mono == 50.0


REOPENED = e.Reopened(
    pid=9, start=9, boot_id="b", slot_dir=None, with_remedies=(), allow=(), why=said("restart")
)


def test_a_reopened_run_forgets_how_it_ended() -> None:
    """Outcome, stop and limits begin anew; attempts, bundles and the best step stay."""
    reopened = msgspec.structs.replace(REOPENED, slot_dir="/dev/shm/new", with_remedies=("omp-1",))
    finished = e.RunFinished(outcome="gave_up", exit_code=76, warning=None, why=said("spent"))
    given_up = e.GivenUp(why=said("spent"), exit_code=76, outcome="gave_up")
    before = b.running(b.stop(), b.exited(3), e.TreeGone(), given_up, finished)
    assert before.finished
    state = evolve(before, at(900.0, reopened))
    assert not state.finished
    assert (state.outcome, state.exit_code, state.given_up, state.stop) == (None, None, None, None)
    assert state.just_reopened
    assert state.attempts[-1].tree_gone
    assert len(state.attempts) == len(before.attempts)
    assert state.slot_dir == "/dev/shm/new"
    assert state.restarts_since_progress == 0


def test_a_requeued_run_has_what_was_left_of_its_restarts() -> None:
    """Slurm begins the same job again: --max-restarts is for all of it, until a newer step."""
    reopened = msgspec.structs.replace(REOPENED, fresh_budget=False)
    spent = b.running(b.exited(3), e.TreeGone(), e.PlanMade(plan=b.plan(2)), again(2))
    assert spent.restarts_since_progress == 1
    state = evolve(spent, at(900.0, reopened))
    assert state.restarts_since_progress == 1
    state = evolve(evolve(state, at(901.0, e.PlanMade(plan=b.plan(3)))), at(902.0, again(3)))
    assert (state.restarts, state.restarts_since_progress) == (2, 2)
