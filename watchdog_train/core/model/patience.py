"""How long a silence is waited for: the row of the table that the root's wait falls under."""

from __future__ import annotations

from typing import Literal

from watchdog_train.core.model.explanation import (
    BatchWait,
    CollectiveWait,
    Place,
    Standstill,
    StoreWait,
)
from watchdog_train.core.model.words import Phase, Value

PatienceRow = Literal[
    "proven",
    "dead-holder",
    "releaser-died",
    "nobody-left",
    "fifo",
    "unknown",
    "at-work",
    "network",
    "poll",
    "outsider",
    "sleep",
    "stopped",
    "service",
    "input",
    "live-lock",
]
"""In the order of the table; `explain.patience` says what each of them is."""


_OF_EVERY_STEP = (BatchWait, CollectiveWait, StoreWait)


class Silence(Value):
    """Where in its training the job has fallen silent."""

    phase: Phase = "train"
    early: bool = False
    """Before the third step."""


class Patience(Value):
    """What a sample of the waits says about waiting longer."""

    row: PatienceRow = "unknown"
    limit_s: float | None = None
    """Of quiet, from its beginning; None: without end."""
    look_in_s: float | None = None
    """When the wait ends by itself, if it does: look again then."""
    root: Standstill | None = None
    """Whom it is granted to."""
    line: Place | None = None
    """Where the silent rank's own code stands."""


class SilentAt(Value):
    """What makes two silences the same."""

    own: Place
    """The user's innermost own frame."""
    wait: str
    steps: int
    """As the training counts them."""


def silent_at(patience: Patience | None, steps: int) -> SilentAt | None:
    """None where no line of the user's own is known, and for waits that are every step's."""
    if patience is None or patience.root is None or patience.line is None:
        return None
    if isinstance(patience.root.doing, _OF_EVERY_STEP):
        return None
    return SilentAt(own=patience.line, wait=type(patience.root.doing).__name__, steps=steps)
