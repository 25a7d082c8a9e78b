"""Room before a restart: a full disk is waited for, and file descriptors are. Pure.

Nothing is launched that could not be started or recorded: it would end before it began, and the run
with it, although a disk that is full at night has often room again a minute later. Nor is a
training started again at once that would end at its next save as it has ended at this one.
"""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value, Why, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.giving_up import give_up
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE

LOOK_AGAIN_S = 1.0


class TornSave(Value):
    """A save that was not finished, and the whole one that tells how much the next one needs."""

    whole: str
    torn: tuple[str, ...]
    """The next save may write over these: what they take is room for it."""


def torn_save(state: State) -> TornSave | None:
    """What the last attempt has left half-written; None where every save is whole."""
    plan = state.next_plan
    if plan is None or plan.checkpoint is None or not state.torn:
        return None
    return TornSave(whole=plan.checkpoint.path, torn=state.torn)


def before_survey(observation: Observation, state: State, policy: Policy) -> Action | None:
    """What has to be waited for before checkpoints are looked for.

    Without that look the next attempt would begin anew.
    """
    if observation.short is None:
        return None
    return _wait(said(observation.short), observation, state, policy, for_good=True)


def before_launch(observation: Observation, state: State, policy: Policy) -> Action | None:
    """What has to be waited for before a planned restart; None when it may be launched."""
    postponed, limit_s = state.postponed, policy.recovery.room_wait_s
    if postponed is not None and observation.now - postponed.since >= limit_s:
        return _give_up(Why("cannot-start", because=(postponed.why,)), limit_s)
    lacking = observation.short or observation.no_room
    if lacking is not None:
        return _wait(said(lacking), observation, state, policy, for_good=True)
    if observation.no_save_room is not None:
        # How much the next save needs is an estimate: nothing is given up for it.
        return _wait(said(observation.no_save_room), observation, state, policy, for_good=False)
    return None


def _wait(
    why: Why, observation: Observation, state: State, policy: Policy, *, for_good: bool
) -> Action | None:
    limit_s = policy.recovery.room_wait_s
    told = next((notice for notice in state.noticed if notice.kind == "room"), None)
    if told is None:
        why = why.plus(Why("waits-for-room", limit_s=limit_s))
        return Record(events=(e.Noticed(kind="room", pids=(), why=why),))
    if observation.now - told.mono < limit_s:
        return Wait(until=observation.now + LOOK_AGAIN_S)
    if not for_good:
        return None
    return _give_up(why, limit_s)


def _give_up(why: Why, limit_s: float) -> Record:
    return give_up(why.plus(Why("no-better", limit_s=limit_s)), EXIT_RETRY_ELSEWHERE)
