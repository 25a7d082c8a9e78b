"""A failed scan of checkpoints: more time, then what the hooks noted, then a wait, then 75. Pure.

A failed scan has found nothing, which says nothing about what is there. A training that began at
step 0 for it would overwrite its own checkpoints.
"""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, StartSurvey, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import ScanLevel, Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.giving_up import give_up
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE

QUICK_TRIES = 3
"""At once: a usual scan, one with more time, one of what the hooks noted."""
WAIT_FIRST_S, WAIT_MOST_S = 15.0, 300.0
"""Before the next pair of tries, with more time and of what the hooks noted; doubles."""


def start(observation: Observation, state: State) -> Action:
    """The next scan, or the wait for it."""
    if (backing_off := backoff(observation, state)) is not None:
        return backing_off
    attempt, failures = state.attempt, state.scan_failures
    crashed = attempt is not None and attempt.stall_id is None
    level: ScanLevel = "full" if crashed else "quick"
    if failures and failures % 2 == 0:
        level = "noted"
    return StartSurvey(level=level, again=failures > 0)


def backoff(observation: Observation, state: State) -> Wait | None:
    """The wait that was recorded, while it lasts."""
    until = state.backoff_until or 0.0
    return Wait(until=min(until, observation.now + 0.5)) if observation.now < until else None


def failed(observation: Observation, state: State, policy: Policy) -> Action:
    """Say what comes next, or give up: no attempt is planned from a failed scan."""
    failures = state.scan_failures + 1
    problem = observation.survey.problem if observation.survey is not None else None
    why = Why("scan-failed", problem=problem or "unknown")
    waited_s = observation.now - state.scan_since_mono if failures > 1 else 0.0
    left_s = policy.recovery.room_wait_s - waited_s
    if failures > QUICK_TRIES and left_s <= 0:
        why = why.plus(Why("scans-failed", count=failures, seconds=waited_s))
        return give_up(why, EXIT_RETRY_ELSEWHERE, consumes=("survey",))
    wait_s = 0.0
    if failures % 2 == 0:
        why = why.plus(Why("next-noted"))
    elif failures < QUICK_TRIES:
        why = why.plus(Why("scan-again"))
    else:
        why = why.plus(Why("waits-for-scan", limit_s=max(left_s, 0)))
        wait_s = WAIT_FIRST_S * 2.0 ** ((failures - QUICK_TRIES) // 2)
        wait_s = max(0.0, min(wait_s, WAIT_MOST_S, left_s))
    events: list[e.AnyEvent] = [e.Noticed(kind="scan", pids=(), why=why)]
    if wait_s:
        until = observation.now + wait_s
        events.append(e.BackingOff(delay_s=wait_s, until_mono=until, why=why))
    return Record(events=tuple(events), consumes=("survey",))
