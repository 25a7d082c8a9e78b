"""What a person is told while they are in bed: a line for each thing worth waking up for. Pure."""

from __future__ import annotations

from datetime import tzinfo
from typing import Literal

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value
from watchdog_train.core.recovery.scan import QUICK_TRIES
from watchdog_train.report import words
from watchdog_train.report.document import verdict_sentence
from watchdog_train.report.explanation_text import because, crash_words, what_happened
from watchdog_train.report.facts import (
    origin_words,
    run_again,
    step_words,
)
from watchdog_train.report.narrative import warned_words
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, rough_duration

Topic = Literal["stalled", "crashed", "restarted", "gave-up", "finished", "notice", "test"]

NOTICES = (
    "stopped",
    "input",
    "uninterruptible",
    "live-lock",
    "no-heartbeat",
    "not-whole",
    "no-progress",
    "room",
    "scan",
    "task",
)
"""Kinds of `noticed` for which somebody may have to act before the morning."""
LINE_CAP = 400


class News(Value):
    """One thing to tell."""

    topic: Topic
    line: str
    last: bool = False
    """Nothing follows it: it is sent at once."""


def news(event: e.AnyEvent, state: State, *, zone: tzinfo | None = None) -> News | None:
    """What an event is worth telling; `state` is the state after it."""
    at = clock_time(event.t, zone, now=event.t)[:5]
    match event:
        case e.StallDeclared():
            told = f"{at} stalled at {step_words(_step(state))}: {why_text(event.why, brief=True)}"
            return News(topic="stalled", line=clean(told, LINE_CAP))
        case e.StallExplained():
            return _cause(event, state, at)
        case e.StallRecovered():
            return News(topic="stalled", line=f"{at} the stall is over by itself, training goes on")
        case e.WouldHaveKilled():
            told = (
                f"{at} nothing is ended, only reports were asked for: wtrain show {event.stall_id}"
            )
            return News(topic="stalled", line=clean(told, LINE_CAP))
        case e.AttemptLaunching() if event.plan.attempt > 1:
            return News(topic="restarted", line=clean(f"{at} {_restart(event)}", LINE_CAP))
        case e.FirstStep() if event.attempt > 1:
            told = f"{at} running again at {step_words(event.step)}{_end(event, state, zone)}"
            return News(topic="restarted", line=told)
        case e.Adopted() | e.Noticed() | e.Warned():
            said = _notice(event, state)
            return News(topic="notice", line=clean(f"{at} {said}", LINE_CAP)) if said else None
        case e.RunFinished():
            lines = [
                f"{at} {verdict_sentence(state)}",
                f"report: {clean(state.run_dir)}/report.html",
            ]
            if event.outcome != "succeeded":
                lines.append(f"to go on: {run_again(state)}")
            topic: Topic = "gave-up" if event.outcome in ("gave_up", "failed") else "finished"
            return News(topic=topic, line="\n".join(clean(one, 1000) for one in lines), last=True)
        case _:
            return None


def _notice(event: e.Adopted | e.Noticed | e.Warned, state: State) -> str | None:
    match event:
        case e.Adopted():
            return f"watched again, by pid {event.pid}: {why_text(event.why)}"
        case e.Noticed(kind="scan") if state.scan_failures != QUICK_TRIES:
            return None  # it is tried at once, or the wait was told
        case e.Warned():
            return warned_words(event)
        case e.Noticed() if event.kind not in NOTICES and not event.kind.startswith("checkpoint"):
            return None
        case _:
            return why_text(event.why)


def _step(state: State) -> int | None:
    return state.progress.step if state.progress.step is not None else state.best_step


def _restart(event: e.AttemptLaunching) -> str:
    plan = event.plan
    names = [clean(use.id, 60) for use in plan.remedies]
    changed = f", with {words.listed(names)}" if names else ""
    return f"restarted {origin_words(plan)} as attempt {plan.attempt}{changed}"


def _cause(event: e.StallExplained, state: State, at: str) -> News | None:
    """Who is stuck, as far as it is known, or what a crash was; nothing for a dump on request."""
    of = state.stall(event.stall_id)
    kind = of.why if of is not None else None
    found = event.explanation
    if of is not None and of.crash is not None:
        told = f"crashed: {crash_words(of.crash, _step(state))}"
        return News(topic="crashed", line=clean(f"{at} {told}", LINE_CAP))
    if kind not in ("crash", "stall") or not (found.tells or found.because):
        return None
    if kind == "crash":
        told = f"crashed at {step_words(_step(state))}: {what_happened(found)}"
        return News(topic="crashed", line=clean(f"{at} {told}", LINE_CAP))
    told = what_happened(found) if found.tells else because(found)
    return News(topic="stalled", line=clean(f"{at} {told}", LINE_CAP))


def _end(event: e.FirstStep, state: State, zone: tzinfo | None) -> str:
    """When it will be done, as far as the pace before the restart tells."""
    total, pace = state.progress.total_steps, state.progress.steps_s
    if not total or not pace or total <= event.step:
        return ""
    left_s = (total - event.step) / pace
    # On another day than now the date is part of it, and seconds would be more than is known.
    done = clock_time(event.t + left_s, zone, now=event.t)[:-3]
    return f"; about {rough_duration(left_s)} left, done about {done} at the pace before"


def title(run_name: str, topics: tuple[Topic, ...]) -> str:
    """The heading of a message: the run, and the newest topic."""
    told = {"gave-up": "gave up or failed", "notice": "look at this"}
    newest = topics[-1] if topics else "test"
    return f"wtrain {clean(run_name, 60) or 'run'}: {told.get(newest, newest)}"
