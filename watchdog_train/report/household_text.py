"""What surrounds a run, in sentences: copies of it, who watches it, its log, its messages. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.report import telling_text
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, duration

MAX_NAMED = 4
"""Orphans that are named one by one."""


def sentences(event: e.AnyEvent, _state: State) -> tuple[str, ...]:
    """For the moment in which it happens."""
    match event:
        case e.OrphansFound():
            lines = [
                f"also running: pid {orphan.pid} ({clean(orphan.command, 120)}): "
                f"{why_text(orphan.why)}"
                for orphan in event.orphans[:MAX_NAMED]
            ]
            more = len(event.orphans) - MAX_NAMED
            pids = " ".join(str(orphan.pid) for orphan in event.orphans)
            return (
                *lines,
                *([f"and {more} more of them"] if more > 0 else []),
                f"to end them: kill {pids}",
            )
        case e.Notified() | e.CommandsStarting() | e.CommandsRan():
            return telling_text.sentences(event)
        case e.Adopted():
            return (
                (
                    f"adopted: pid {event.pid} watches on in place of pid {event.previous_pid}: "
                    f"{why_text(event.why)}"
                ),
            )
        case e.Reopened():
            return (f"the run goes on: {why_text(event.why)}",)
        case e.SupervisorLeft():
            return (f"the supervisor leaves, training goes on: {why_text(event.why)}",)
        case e.LogBehind():
            where = f", kept in {clean(event.spill)}" if event.spill else ""
            return (
                f"the event log is {duration(event.behind_s)} behind{where}: {why_text(event.why)}",
            )
        case _:
            return ()
