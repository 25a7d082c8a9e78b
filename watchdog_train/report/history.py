"""What a whole event log tells about each attempt, for the morning report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.detection.rank_gone import how_it_ended, recorded
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value, Why
from watchdog_train.report import daemons_text, telling_text
from watchdog_train.report.notices import warning_over
from watchdog_train.report.pace_text import slow_words, straggler_words
from watchdog_train.report.time_line import TimeLine, time_line
from watchdog_train.report.why_text import why_text

_replace = msgspec.structs.replace


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
            case e.Signalled() if event.result in ("sent", "ordered") and event.role != "keeper":
                killed[event.pid, event.start] = (event.role, event.signal)
                counts = Counter(killed.values())
                _change(attempts, killed=tuple((*key, each) for key, each in counts.items()))
            case e.AttemptExited():
                _change(attempts, ended_t=event.t)
            case e.RemedyTaken() if attempts:
                told = (event.remedy, event.took, event.why)
                if all(name != event.remedy for name, _, _ in attempts[-1].setting_words):
                    _change(attempts, setting_words=(*attempts[-1].setting_words, told))
            case e.ResumeVerified():
                _change(attempts, resume_why=event.why)
            case _:
                words = _notable(event)
                if words is not None:
                    notables.append(Notable(t=event.t, words=words))
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


def _notable(event: e.AnyEvent) -> str | None:  # noqa: PLR0912 - one arm per event type
    match event:
        case e.Noticed() | e.SlowdownEnded():
            return why_text(event.why)
        case e.Slowdown():
            return slow_words(event)
        case e.Straggling():
            return f"straggler: {straggler_words(event.straggler)}"
        case e.Warned():
            return f"warning: {why_text(event.why)}"
        case e.WarningOver():
            return warning_over(event)
        case e.Notified() | e.CommandsRan():
            return "; ".join(telling_text.failures(event)) or None
        case e.RankEnded():
            return how_it_ended(recorded(event))
        case e.Adopted():
            why = why_text(event.why)
            return f"adopted by pid {event.pid} in place of pid {event.previous_pid}: {why}"
        case e.Reopened():
            return f"the finished run was let go on: {why_text(event.why)}"
        case e.SupervisorLeft():
            return f"the supervisor left, training went on: {why_text(event.why)}"
        case e.LogBehind():
            return f"the event log was {event.behind_s:.0f} s behind: {why_text(event.why)}"
        case e.SurvivedKill():
            return f"survived SIGKILL: {', '.join(map(str, event.pids))}: {why_text(event.why)}"
        case e.DaemonsJudged():
            return daemons_text.notable(event)
        case e.StopRequested():
            return f"stop requested ({event.mode}): {event.by}"
        case e.SaveProven():
            return f"saved on request: {event.path}"
        case e.StallRecovered():
            return f"stall {event.stall_id} was over by itself: {why_text(event.why)}"
        case _:
            return None
