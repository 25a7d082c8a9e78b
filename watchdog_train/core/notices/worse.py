"""What a remedy costs: steps that take three times as long. Pure."""

from __future__ import annotations

from itertools import pairwise

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import Why

SLOWER_FACTOR = 3.0
"""The same factor by which a slowdown within an attempt is called one."""
SETTLED_S = 30.0
"""After the first step: caches are warm, and the pace is the training's own."""


def slowed(before: AttemptRecord, after: AttemptRecord) -> bool:
    """Whether steps took much longer in the second of two attempts."""
    old, new = before.fastest_steps_s, after.fastest_steps_s
    return old is not None and new is not None and old >= SLOWER_FACTOR * new


def slower(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Said once an attempt: what was added to it has made its steps much slower."""
    steps_s, attempt = observation.steps_s, state.attempt
    if not steps_s or attempt is None or "slower" in state.notices or len(state.attempts) < 2:
        return []
    if state.suspicion is not None or attempt.first_step_s is None:
        return []
    if observation.now < attempt.launching_mono + attempt.first_step_s + SETTLED_S:
        return []
    before = _before(state)
    known = {use.id for use in before.plan.remedies} if before is not None else set()
    added = [use.id for use in attempt.plan.remedies if use.id not in known]
    if before is None or before.fastest_steps_s is None or not added:
        return []
    best = max(steps_s, attempt.fastest_steps_s or 0.0)
    if before.fastest_steps_s < SLOWER_FACTOR * best:
        return []
    factor = before.fastest_steps_s / best
    why = Why("slower", number=factor, attempts=(before.attempt,), names=tuple(added))
    return [e.Noticed(kind="slower", pids=(), why=why)]


def _before(state: State) -> AttemptRecord | None:
    """The attempt before the present one's new remedies."""
    for before, after in reversed(list(pairwise(state.attempts))):
        if {use.id for use in before.plan.remedies} != {use.id for use in after.plan.remedies}:
            return before
    return None
