"""The first attempt of a job of several nodes: all come, one plans, all launch. Pure.

A rule of decide(). That every node has been heard is also the proof that the directory in which
they meet is the same for all of them.
"""

from __future__ import annotations

from typing import Final

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.agree import launch_together, learn_unseen, may_launch, received
from watchdog_train.core.job.confer import ended_elsewhere
from watchdog_train.core.job.together import (
    LOOK_AGAIN_S,
    UNHEARD_S,
    in_one_boat,
    lower_peers,
    missing_words,
)
from watchdog_train.core.model import Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.giving_up import give_up
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE

SAY_AFTER_S = 5.0
NOTICE: Final = "peers"


def gather(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Wait for all nodes, then for the leader's plan, then for all to agree to it."""
    job = state.job
    if state.attempt is not None or job is None or job.task.kind != "node":
        return None
    if state.stop is not None or state.given_up is not None:
        return None
    over = ended_elsewhere(observation, state)
    if over is not None:
        return over
    waited_s = observation.now - job.joined_mono
    if job.agreed is not None:
        recorded = launch_together(observation, state)
        if recorded is not None or may_launch(observation, state):
            return recorded
        if waited_s < policy.job.gather_s + policy.job.plan_s:
            return Wait(until=observation.now + LOOK_AGAIN_S)
        return give_up(Why("not-agreed"), EXIT_RETRY_ELSEWHERE)
    found = received(observation, state) or learn_unseen(observation, state)
    if found is not None:
        return found
    who = _missing(observation, state)
    if not who and not lower_peers(observation, state):
        return None
    if waited_s >= policy.job.gather_s:
        place = job.task.coordination or ""
        why = Why("not-come", who=who or "the plan of the first node", limit_s=waited_s).plus(
            Why("ask-address", path=place)
        )
        return give_up(why, EXIT_RETRY_ELSEWHERE)
    if who and waited_s >= SAY_AFTER_S and NOTICE not in state.notices:
        why = Why("waits-at", who=who, path=job.task.coordination or "")
        return Record(events=(e.Noticed(kind=NOTICE, pids=(), why=why),))
    return Wait(until=observation.now + LOOK_AGAIN_S)


def _missing(observation: Observation, state: State) -> str:
    """Nodes that are not there, in words; empty when all are."""
    job = state.job
    peers = in_one_boat(observation, state)
    unheard = job.task.met - 1 - len(peers) if job is not None else 0
    gone = tuple(p.summary.task for p in peers if p.heard_s >= UNHEARD_S and p.alive is not True)
    return missing_words(gone, unheard, observation, state)
