"""Room for the files of the next attempt: a full disk is waited for before a restart. Pure.

Nothing is launched that could not be recorded: it would end before it began, and the run with it,
although a disk that is full at night has often room again a minute later.
"""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, Wait
from watchdog_train.core.ladder import EXIT_RETRY_ELSEWHERE
from watchdog_train.core.policy import Policy
from watchdog_train.core.state import State

LOOK_AGAIN_S = 1.0


def before_launch(observation: Observation, state: State, policy: Policy) -> Action | None:
    """What has to be waited for before a planned restart; None when it may be launched."""
    why = observation.no_room
    if why is None:
        return None
    limit_s = policy.recovery.room_wait_s
    said = next((notice for notice in state.noticed if notice.kind == "room"), None)
    if said is None:
        words = (
            f"the run directory cannot be written ({why}): the next attempt waits for it, "
            f"{limit_s:.0f} s at most"
        )
        return Record(events=(e.Noticed(kind="room", pids=(), why=words),))
    if observation.now - said.mono < limit_s:
        return Wait(until=observation.now + LOOK_AGAIN_S)
    given_up = f"the run directory could not be written for {limit_s:.0f} s: {why}"
    return Record(
        events=(e.GivenUp(why=given_up, exit_code=EXIT_RETRY_ELSEWHERE, outcome="gave_up"),)
    )
