"""What must hold at every effect and every event of a run, checked against the simulated truth."""

from __future__ import annotations

from tests.properties.simulated import KILL, NEVER_RAN, TERM, Attempt
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Policy
from watchdog_train.report.why_text import why_text


def idle_restarts(log: list[e.AnyEvent]) -> int:
    """Restarts since the log told of a newer step."""
    best, count, launches = 0, 0, 0
    for event in log:
        match event:
            case e.AttemptLaunching():
                launches += 1
                count += launches > 1
                continue
            case e.LaunchPostponed():
                count -= launches > 1
                launches -= 1
                continue
            case e.FirstStep() | e.AttemptExited():
                step = event.step
            case e.Progress():
                step = event.progress.step
            case _:
                continue
        if step is not None and step > best:
            best, count = step, 0
    return count


def check_launch(
    attempts: list[Attempt], state: State, policy: Policy, log: list[e.AnyEvent], now: float
) -> None:
    """Nothing of ours lives, nobody asked to stop, it is time, and the budget allows it."""
    for earlier in attempts:
        assert not earlier.alive, "launched over a living tree"
        assert not earlier.keeper.alive, "launched over a living keeper"
    assert state.stop is None, "launched after a stop request"
    until = state.backoff_until
    assert until is None or now >= until, "launched before its time"
    if attempts:
        allowed = policy.recovery.max_restarts
        assert idle_restarts(log) < allowed, "over the restart budget"
    assert not policy.recovery.observe or not attempts, "observing, and restarts"


def check_signal(
    action: a.Signal, attempt: Attempt, state: State, policy: Policy, log: list[e.AnyEvent]
) -> None:
    """Evidence first, SIGTERM before SIGKILL, and nobody while only observing."""
    stop = state.stop
    observing = policy.recovery.observe
    of_keeper = action.targets == (attempt.keeper.identity,)
    if observing and action.signal and not of_keeper:
        assert stop is not None, "a signal while only observing"
    if action.sequence == "hang":
        current = state.attempt
        assert current is not None
        collected = {event.stall_id for event in log if isinstance(event, e.EvidenceCollected)}
        assert current.stall_id in collected, "a signal before the evidence"
    if action.sequence == "sweep" and action.signal and not (stop and stop.mode == "now"):
        pending = [stall for stall in state.stalls if stall.id == state.attempt.stall_id]
        assert all(stall.collected for stall in pending), "swept away before the evidence"
    if action.sequence == "stop" and action.signal and stop is not None and stop.mode == "soft":
        assert not any(stall.collecting and stall.why == "stall" for stall in state.stalls), (
            "a signal while evidence is collected"
        )
    if action.signal != KILL or (stop is not None and stop.mode == "now"):
        return
    for process in attempt.processes:
        if process.identity in action.targets and process.role == "rank":
            told = TERM in process.got or not process.known_before_kill
            assert told or not attempt.script.slot, "SIGKILL before SIGTERM"


def check_event(
    event: e.AnyEvent, attempts: list[Attempt], state: State, policy: Policy, log: list[e.AnyEvent]
) -> None:
    """What the log says is true."""
    attempt = attempts[-1] if attempts else None
    match event:
        case e.StallDeclared():
            assert attempt is not None
            faulty = attempt.hung or not attempt.root.alive
            stuck = any(process.state == "D" for process in attempt.alive)
            # A rank that somebody has killed is waited for, though the script knows of no fault.
            killed = any(one.role == "rank" and one.signal for one in attempt.processes)
            assert faulty or stuck or killed, "a healthy training was declared stalled"
            assert attempt.script.ending != "input", "a prompt was declared a stall"
            if event.basis == "rank-gone":
                ranks = [process for process in attempt.processes if process.role == "rank"]
                dead = {process.rank for process in ranks if not process.alive}
                assert set(event.ranks) <= dead, "a rank that lives is said to be gone"
                assert len(ranks) > 1, "waited for by nobody"
        case e.RankEnded():
            assert attempt is not None
            ended = next(one for one in attempt.processes if one.pid == event.end.pid)
            assert not ended.alive, "ended, and lives"
            assert (event.end.code, event.end.signal) == (ended.code, ended.signal), "another end"
        case e.StallRecovered():
            assert attempt is not None
            assert not attempt.hung or not attempt.root.alive, "recovered, and still hung"
        case e.RunFinished():
            check_end(event, attempts, state, policy, log)


def check_end(
    event: e.RunFinished,
    attempts: list[Attempt],
    state: State,
    policy: Policy,
    log: list[e.AnyEvent],
) -> None:
    """The documented exit code, and no success that was none."""
    final = attempts[-1] if attempts else None
    if state.stop is not None and event.outcome == "stopped":
        assert event.exit_code == state.stop.exit_code
        return
    assert final is not None
    alive = [process.pid for process in final.alive]
    if alive and not policy.recovery.observe:
        assert event.warning is not None
        assert all(str(pid) in why_text(event.warning) for pid in alive)
    truth = final.exit
    killed = any(
        isinstance(one, e.Signalling) and one.sequence == "hang" and one.attempt == final.number
        for one in log
    )
    if event.outcome == "succeeded":
        assert event.exit_code == 0
        if killed:
            assert final.phase == "finishing", "a stalled attempt counts as success"
            assert event.warning is not None
        else:
            assert truth is not None
            assert truth.code == 0
    elif event.outcome == "gave_up":
        assert event.exit_code in (75, 76)
        assert event.exit_code != 76 or policy.recovery.max_restarts > 0
    elif final.script.ending in NEVER_RAN:
        orphaned = state.attempt is not None and state.attempt.how_known == "gone"
        assert event.exit_code == (75 if orphaned else 78)
    else:
        assert event.outcome == "failed"
        assert truth is not None
        own = truth.code if truth.code is not None else 128 + (truth.signal or 0)
        assert event.exit_code == (75 if truth.how_known == "gone" else own)
        assert event.exit_code != 0, "a failure with exit code 0"
