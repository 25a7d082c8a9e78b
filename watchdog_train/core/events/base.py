"""What every event has: the envelope, and how its type is written."""

import re

import msgspec

from watchdog_train.core.model import Value
from watchdog_train.core.model.words import host_of

SCHEMA_VERSION = 1


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(Value, tag_field="type", tag=_snake):
    """The envelope. The event log fills seq, t and mono when it appends."""

    v: int = SCHEMA_VERSION
    seq: int = 0
    """Starts at 1, no gaps."""
    t: float = 0.0
    """Wall clock, Unix seconds; for display only."""
    mono: float = 0.0
    """Monotonic clock of the machine, seconds since boot; decides everything."""
    attempt: int = 0
    """0 before the first attempt."""


class TreeEvent(Event):
    """About the processes of one machine."""

    where: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="host")
    """Another machine than the supervisor's."""

    @property
    def host(self) -> str:
        return host_of(self.where)
