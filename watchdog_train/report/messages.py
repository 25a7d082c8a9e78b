"""Messages to a person: a line for each event that may need one. Pure."""

from __future__ import annotations

from typing import Literal

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value
from watchdog_train.core.recovery.restart import QUICK_TRIES
from watchdog_train.report import facts, words
from watchdog_train.report.explanation_text import crash_words
from watchdog_train.report.narrative import stall_words, told
from watchdog_train.report.summary import verdict_line
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
"""Kinds of `noticed` for which a person may have to act before the morning."""
LINE_CAP = 400


class News(Value):
    topic: Topic
    line: str
    last: bool = False
    """The last message of the run: it is sent at once."""


def news(event: e.AnyEvent, state: State) -> News | None:
    """The message about an event, if it needs one; `state` is the state after it."""
    at = clock_time(event.t, now=event.t)[:5]
    if isinstance(event, e.RunFinished):
        lines = [f"{at} {verdict_line(state)}", f"report: {clean(state.run_dir)}/report.html"]
        if event.outcome != "succeeded":
            lines.append(f"to continue: {facts.run_again(state)}")
        topic: Topic = "gave-up" if event.outcome in ("gave_up", "failed") else "finished"
        return News(topic=topic, line="\n".join(clean(one, 1000) for one in lines), last=True)
    found = _told(event, state)
    return News(topic=found[0], line=clean(f"{at} {found[1]}", LINE_CAP)) if found else None


def _told(event: e.AnyEvent, state: State) -> tuple[Topic, str] | None:
    match event:
        case e.StallDeclared():
            at = facts.step_words(facts.newest_step(state))
            return "stalled", f"stalled at {at}: {stall_words(event, state)}"
        case e.StallExplained():
            return _cause(event, state)
        case e.StallRecovered():
            return "stalled", told(event, state)[0]
        case e.WouldHaveKilled():
            return "stalled", f"{told(event, state)[0]}; wtrain show {event.stall_id}"
        case e.AttemptLaunching(plan=plan) if plan.attempt > 1:
            names = [clean(use.id, 60) for use in plan.remedies]
            changed = f", with {words.listed(names)}" if names else ""
            origin = facts.origin_words(plan)
            return "restarted", f"restarted {origin} as attempt {plan.attempt}{changed}"
        case e.FirstStep() if event.attempt > 1:
            left = _end(event, state)
            return "restarted", f"running again at {facts.step_words(event.step)}{left}"
        case e.Adopted() | e.Warned():
            return "notice", told(event, state)[0]
        case e.Noticed(kind="scan") if state.scan_failures != QUICK_TRIES:
            return None  # tried again at once, or reported before
        case e.Noticed(kind=kind) if kind in NOTICES or kind.startswith("checkpoint"):
            return "notice", why_text(event.why)
        case _:
            return None


def _cause(event: e.StallExplained, state: State) -> tuple[Topic, str] | None:
    """The root of a stall, or the crash; nothing for a dump on request."""
    of, step = state.stall(event.stall_id), facts.newest_step(state)
    if of is not None and of.crash is not None:
        return "crashed", f"crashed: {crash_words(of.crash, step)}"
    text = facts.caught_sentence(None, event.explanation)
    if of is None or of.why == "manual" or not text:
        return None
    if of.why == "stall":
        return "stalled", text
    return "crashed", f"crashed at {facts.step_words(step)}: {text}"


def _end(event: e.FirstStep, state: State) -> str:
    """The expected end by the pace before the restart; empty if unknown."""
    total, pace = state.progress.total_steps, state.progress.steps_s
    if not total or not pace or total <= event.step:
        return ""
    left_s = (total - event.step) / pace
    # With the date unless that is today, without seconds.
    done = clock_time(event.t + left_s, now=event.t)[:-3]
    return f"; about {rough_duration(left_s)} left, done about {done} at the pace before"


def title(run_name: str, topics: tuple[Topic, ...]) -> str:
    """The heading of a message: the run, and the newest topic."""
    titles = {"gave-up": "gave up or failed", "notice": "look at this"}
    newest = topics[-1] if topics else "test"
    return f"wtrain {clean(run_name, 60) or 'run'}: {titles.get(newest, newest)}"
