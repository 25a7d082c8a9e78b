"""What was told to people and programs outside, and what became of it."""

from watchdog_train.core.events.base import Event
from watchdog_train.core.model import Value, Why

BEFORE_RESTART = "before_restart"
"""Not an event of the log: the moment before the next attempt of a run is launched."""


class Notified(Event):
    """A message to a person was sent on one channel, or could not be."""

    channel: str
    """Its scheme and number, as `https #1`: the rest of a URL can be a secret."""
    topics: tuple[str, ...]
    sent: bool
    why: Why | None
    """Why it was not sent."""


class CommandResult(Value):
    """How one command of the user's ended."""

    number: int
    """Which of the settings' commands, from 1; its text can be a secret."""
    ok: bool
    seconds: float
    code: int | None = None
    signal: int | None = None
    why: Why | None = None
    """Why it is not ok."""
    output: str = ""
    """The end of what it wrote, without secrets."""


class CommandsStarting(Event):
    """Intent: the user's commands for an event are started."""

    for_event: str
    for_attempt: int
    """The attempt to come for `before_restart`, else the present one."""
    numbers: tuple[int, ...]


class CommandsRan(Event):
    """The user's commands for an event have ended, or were ended at their deadline."""

    for_event: str
    for_attempt: int
    results: tuple[CommandResult, ...]
