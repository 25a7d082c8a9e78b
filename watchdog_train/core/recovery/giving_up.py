"""The action that says that no further attempt is due. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Record, TaskName
from watchdog_train.core.model import GuiltyNode, Outcome


def give_up(
    why: str,
    exit_code: int,
    outcome: Outcome = "gave_up",
    *,
    offers: tuple[str, ...] = (),
    guilty: tuple[GuiltyNode, ...] = (),
    consumes: tuple[TaskName, ...] = (),
) -> Record:
    """No further attempt, for the whole job; the arguments are those of the event."""
    event = e.GivenUp(why=why, exit_code=exit_code, outcome=outcome, offers=offers, guilty=guilty)
    return Record(events=(event,), consumes=consumes)
