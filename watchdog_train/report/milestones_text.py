"""`wtrain status --milestones`: the way of every rank to its first step. Pure."""

from __future__ import annotations

from watchdog_train.core.fold.state import State
from watchdog_train.report import words
from watchdog_train.report.live import Live
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.status_json import places_now
from watchdog_train.report.status_text import headline
from watchdog_train.report.words import PLAIN, Paint, clean, duration


def milestones_text(state: State, live: Live, *, paint: Paint = PLAIN) -> str:
    """All lines, without a newline at the end; nothing is cut."""
    _, style = headline(state, live)
    title = f"{paint('●', style)} {paint(clean(state.run_id, 100), 'strong')}"
    lines = [f"{title} - {words.command_title(state.argv)}"]
    places, now, origin = places_now(state, live)
    if state.attempt is None or origin is None or not places:
        lines.append("no milestone is known: " + _why_none(state))
        return "\n".join(lines)
    lines.append(f"attempt {state.attempt.attempt}, times since its launch{_as_of(state, live)}")
    lines += [
        *[paint(sentence, "warn") for sentence in place_sentences(places, now)],
        "",
        *place_lines(places, now, origin),
    ]
    return "\n".join(lines)


def _why_none(state: State) -> str:
    if state.attempt is None:
        return "no attempt was launched"
    return "no process of this attempt has written one down"


def _as_of(state: State, live: Live) -> str:
    if live.places is not None:
        return ""
    if live.mono is not None and not state.finished:
        return f", as recorded {duration(live.mono - state.places_mono)} ago"
    return ", as recorded last"
