"""How a launch changes the state of a run: meant, made, or put off. Part of evolve; pure."""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import AttemptRecord, Postponed, State, Tree
from watchdog_train.core.model import ProcessId, RunProgress

_replace = msgspec.structs.replace
POSTPONED_S = 1.0
"""Until a launch that could not be made is tried again."""


def launch(state: State, event: e.AnyEvent) -> State:
    """The intent of an attempt, and what came of it."""
    match event:
        case e.AttemptLaunching():
            return _launching(state, event)
        case e.AttemptLaunched():
            if state.attempts and state.tree(event.host) is None:
                state = records.attempt(state, trees=(*state.trees, Tree(host=event.host)))
            state = records.trees(
                state,
                event.host,
                launched=True,
                root=ProcessId(event.pid, event.start, event.host),
                keeper=ProcessId(event.keeper_pid, event.keeper_start, event.host),
            )
            running = state.attempt is None or state.attempt.launched
            return _replace(state, state="running" if running else "starting", postponed=None)
        case e.LaunchPostponed():
            return _postponed(state, event)
        case _:
            return state


def _launching(state: State, event: e.AttemptLaunching) -> State:
    record = AttemptRecord(
        attempt=event.plan.attempt,
        plan=event.plan,
        token=event.token,
        launching_mono=event.mono,
        trees=tuple(Tree(host=host) for host in event.hosts),
    )
    again = 1 if state.attempts else 0
    return _replace(
        state,
        state="starting",
        attempts=(*state.attempts, record),
        next_plan=None,
        restarts=state.restarts + again,
        restarts_since_progress=state.restarts_since_progress + again,
        members=(),
        ranks=(),
        places=(),
        hooks=(),
        rank_ends=(),
        progress=RunProgress(),
        suspicion=None,
        look=None,
        muted=False,
        notices=(),
        noticed=(),
        slowdown=None,
        straggler=None,
        warned=tuple(one for one in state.warned if one.kind in ("disk", "memory")),
        backoff_until=None,
        gpu_held=None,
        scan_failures=0,
        torn=(),
        can_be_asked_to_save=False,
    )


def _postponed(state: State, event: e.LaunchPostponed) -> State:
    """As if its launch had not been meant: it is no try of its plan, and costs no restart."""
    attempt = state.attempt
    if attempt is None or attempt.launched:
        return state
    before = state.postponed
    return _replace(
        state,
        state="backoff",
        attempts=state.attempts[:-1],
        next_plan=attempt.plan,
        restarts=max(0, state.restarts - 1),
        restarts_since_progress=max(0, state.restarts_since_progress - 1),
        postponed=Postponed(
            since=before.since if before else event.mono,
            why=event.why,
            tries=before.tries + 1 if before else 1,
        ),
        backoff_until=event.mono + POSTPONED_S,
    )
