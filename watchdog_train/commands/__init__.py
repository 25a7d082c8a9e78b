"""A user's commands for one event, and their results: the files between supervisor and child.

`commands.run` is the child: it runs them with a deadline. Nothing runs here.
"""

from __future__ import annotations

from typing import Any

from watchdog_train.core.events import CommandResult
from watchdog_train.core.model import Value, Why

ORDER_CAP_BYTES = 4 << 20
ANSWER_CAP_BYTES = 1 << 20
EXTRA_S = 30.0
"""For starting Python on a starved machine, and for killing what is left."""


class Order(Value):
    """The commands for one event, one after another; the reader deletes the file."""

    commands: tuple[tuple[int, str], ...]
    """Number and text of each."""
    event: dict[str, Any]
    """For their stdin, as it is in the log: the child removes secrets."""
    deadline_s: float
    """For each."""
    cwd: str
    out: str = ""
    """File for the answer."""

    @property
    def within_s(self) -> float:
        """The child hangs if it has not answered after this."""
        return len(self.commands) * self.deadline_s + EXTRA_S


def failed(order: Order, why: Why) -> tuple[CommandResult, ...]:
    """No command is known to have worked."""
    return tuple(
        CommandResult(number=number, ok=False, why=why, seconds=0.0) for number, _ in order.commands
    )
