"""A failed scan of checkpoints: more time, then what the hooks noted, then a wait, then 75. Pure.

A failed scan has found nothing, which says nothing about what is there. A training that began at
step 0 for it would overwrite its own checkpoints.
"""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, StartSurvey, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import ScanLevel
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.giving_up import give_up
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE

QUICK_TRIES = 3
"""At once: a usual scan, one with more time, one of what the hooks noted."""
WAIT_FIRST_S, WAIT_MOST_S = 15.0, 300.0
"""Before the next pair of tries, with more time and of what the hooks noted; doubles."""


def start(observation: Observation, state: State, policy: Policy) -> Action:
    """The next scan, or the wait for it."""
    failures = state.scan_failures
    if failures >= QUICK_TRIES and failures % 2:
        wait_s = _wait_s(failures, state.scan_failed_mono - state.scan_since_mono, policy)
        due = state.scan_failed_mono + wait_s
        if observation.now < due:
            return Wait(until=min(due, observation.now + 0.5))
    attempt = state.attempt
    crashed = attempt is not None and attempt.stall_id is None
    level: ScanLevel = "full" if crashed else "quick"
    if failures and failures % 2 == 0:
        level = "noted"
    return StartSurvey(level=level, again=failures > 0)


def failed(observation: Observation, state: State, policy: Policy) -> Action:
    """Say what comes next, or give up: no attempt is planned from a failed scan."""
    failures = state.scan_failures + 1
    problem = observation.survey.problem if observation.survey is not None else None
    why = f"the scan of checkpoints failed ({problem})"
    limit_s = policy.recovery.room_wait_s
    waited_s = observation.now - state.scan_since_mono if failures > 1 else 0.0
    if failures > QUICK_TRIES and waited_s >= limit_s:
        why += f", {failures} times in {waited_s:.0f} s; beginning at step 0 could lose checkpoints"
        return give_up(why, EXIT_RETRY_ELSEWHERE, consumes=("survey",))
    if failures % 2 == 0:
        why += "; next: the newest save that the hooks noted, if it is unchanged"
    elif failures < QUICK_TRIES:
        why += "; it is tried again with more time"
    else:
        why += (
            "; the next attempt waits, and the scan is tried again in "
            f"{_wait_s(failures, waited_s, policy):.0f} s, for {limit_s:.0f} s in all"
        )
    return Record(events=(e.Noticed(kind="scan", pids=(), why=why),), consumes=("survey",))


def _wait_s(failures: int, waited_s: float, policy: Policy) -> float:
    wait_s = WAIT_FIRST_S * 2.0 ** ((failures - QUICK_TRIES) // 2)
    return max(0.0, min(wait_s, WAIT_MOST_S, policy.recovery.room_wait_s - waited_s))
