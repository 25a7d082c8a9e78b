"""The whole event log folded for the report: its attempts, notable events and time line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import Value, Why
from watchdog_train.report import notices
from watchdog_train.report.narrative import told
from watchdog_train.report.time_line import TimeLine, time_line

_replace = msgspec.structs.replace


NOTABLE = (
    e.Noticed,
    e.Straggling,
    e.Warned,
    e.Notified,
    e.CommandsRan,
    e.RankEnded,
    e.Adopted,
    e.Reopened,
    e.SupervisorLeft,
    e.LogBehind,
    e.SurvivedKill,
    e.StopRequested,
    e.SaveProven,
    e.StallRecovered,
)
"""Events whose sentences the report shows; the others are in its tables."""


class AttemptHistory(Value):
    """One attempt: its record in the state, and what only its events say."""

    record: AttemptRecord
    launching_t: float
    ended_t: float | None = None
    killed: tuple[tuple[str, int, int], ...] = ()
    """Role, last signal that was really sent, number of processes."""
    rejected: tuple[e.CheckpointRejected, ...] = ()
    """Before it, when its checkpoint was chosen."""
    settings: dict[str, e.RemedyTaken] = {}  # noqa: RUF012 - msgspec copies it
    """By remedy: the newest answer of the training process."""
    resume_why: Why | None = None


class Notable(Value):
    """The sentences of an event that a person should know."""

    t: float
    words: str


class History(Value):
    """A run from its first event to its newest."""

    state: State
    attempts: tuple[AttemptHistory, ...]
    notables: tuple[Notable, ...]
    time_line: TimeLine


def history(events: Iterable[e.AnyEvent]) -> History:
    """Fold the events."""
    events = tuple(events)
    state = State()
    attempts: list[AttemptHistory] = []
    notables: list[Notable] = []
    rejected: list[e.CheckpointRejected] = []
    killed: dict[tuple[int, int], tuple[str, int]] = {}
    for event in events:
        state = evolve(state, event)
        match event:
            case e.AttemptLaunching():
                killed.clear()
                new = AttemptHistory(
                    record=state.attempts[-1], launching_t=event.t, rejected=tuple(rejected)
                )
                attempts.append(new)
                rejected.clear()
            case e.LaunchPostponed() if attempts:
                rejected.extend(attempts.pop().rejected)
            case e.CheckpointRejected():
                rejected.append(event)
            case e.Signalled():
                killed |= {
                    (one.pid, one.start): (one.role, one.signal)
                    for one in event.sent
                    if one.result in ("sent", "ordered") and one.role != "keeper"
                }
                counts = Counter(killed.values())
                _change(attempts, killed=tuple((*key, each) for key, each in counts.items()))
            case e.AttemptExited():
                _change(attempts, ended_t=event.t)
            case e.RemedyTaken() if attempts:
                _change(attempts, settings={**attempts[-1].settings, event.remedy: event})
            case e.ResumeVerified():
                _change(attempts, resume_why=event.why)
            case e.DaemonsJudged():
                words = notices.killed_daemons(event)
                notables += [Notable(t=event.t, words=words)] if words is not None else []
            case _ if isinstance(event, NOTABLE):
                words = "; ".join(told(event, state))
                notables += [Notable(t=event.t, words=words)] if words else []
    pairs = zip(attempts, state.attempts, strict=False)
    return History(
        state=state,
        attempts=tuple(_replace(one, record=record) for one, record in pairs),
        notables=tuple(notables),
        time_line=time_line(events),
    )


def _change(attempts: list[AttemptHistory], **changes: object) -> None:
    if attempts:
        attempts[-1] = _replace(attempts[-1], **changes)
