"""What a whole event log tells about each attempt, for the morning report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
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
"""Events that the report tells by their sentences; the rest is in its tables."""


class Rejected(Value):
    """A checkpoint that was passed over."""

    path: str
    why: Why


class AttemptHistory(Value):
    """What happened to one attempt beside what its record in the state says."""

    attempt: int
    launching_t: float
    ended_t: float | None = None
    killed: tuple[tuple[str, int, int], ...] = ()
    """Role, last signal that was really sent, number of processes."""
    rejected: tuple[Rejected, ...] = ()
    """Before it, when its checkpoint was chosen."""
    setting_words: tuple[tuple[str, bool, Why], ...] = ()
    """Remedy, took, why: what the training process said."""
    resume_why: Why | None = None


class Notable(Value):
    """Something that a person should know, at its time."""

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
    rejected: list[Rejected] = []
    killed: dict[tuple[int, int], tuple[str, int]] = {}
    for event in events:
        state = evolve(state, event)
        match event:
            case e.AttemptLaunching():
                killed.clear()
                attempts.append(
                    AttemptHistory(
                        attempt=event.plan.attempt, launching_t=event.t, rejected=tuple(rejected)
                    )
                )
                rejected.clear()
            case e.LaunchPostponed() if attempts:
                rejected.extend(attempts.pop().rejected)
            case e.CheckpointRejected():
                rejected.append(Rejected(path=event.path, why=event.why))
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
                others = (one for one in attempts[-1].setting_words if one[0] != event.remedy)
                answer = (event.remedy, event.took, event.why)
                _change(attempts, setting_words=(*others, answer))
            case e.ResumeVerified():
                _change(attempts, resume_why=event.why)
            case e.DaemonsJudged():
                words = notices.killed_daemons(event)
                notables += [Notable(t=event.t, words=words)] if words is not None else []
            case _ if isinstance(event, NOTABLE):
                words = "; ".join(told(event, state))
                notables += [Notable(t=event.t, words=words)] if words else []
    return History(
        state=state,
        attempts=tuple(attempts),
        notables=tuple(notables),
        time_line=time_line(events),
    )


def _change(
    attempts: list[AttemptHistory],
    **changes: object,
) -> None:
    if attempts:
        attempts[-1] = _replace(attempts[-1], **changes)
