"""What became of messages and commands, in sentences. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.events.telling import BEFORE_RESTART
from watchdog_train.core.model import Why
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean


def sentences(event: e.Notified | e.CommandsStarting | e.CommandsRan) -> tuple[str, ...]:
    """For the moment in which it happens: what somebody waits for, and what went wrong."""
    if isinstance(event, e.CommandsStarting):
        waited_for = event.for_event == BEFORE_RESTART
        return ("running your commands before the restart",) if waited_for else ()
    return failures(event)


def failures(event: e.Notified | e.CommandsRan) -> tuple[str, ...]:
    """A sentence for each message and command that did not do what it should."""
    if isinstance(event, e.CommandsRan):
        return tuple(_failure(event, result) for result in event.results if not result.ok)
    if event.sent:
        return ()
    return (
        f"nobody was told on {clean(event.channel, 60)}: {why_text(event.why or Why('unknown'))}",
    )


def _failure(event: e.CommandsRan, result: e.CommandResult) -> str:
    last = result.output.strip().splitlines()[-1:]
    said = f": {clean(last[0], 200)}" if last else ""
    what = f"command {result.number} for {clean(event.for_event, 60)}"
    return f"{what} failed: {why_text(result.why or Why('unknown'))}{said}"
