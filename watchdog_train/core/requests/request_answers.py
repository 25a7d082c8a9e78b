"""What the ranks have said to requests since the last poll, as events. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State


def answers(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Requests that a rank has taken since the last poll, or found no common step for."""
    slots = [slot for _, slot in observation.sample.judged]
    step = max((slot.step for slot in slots if slot.step is not None), default=None)
    found: list[e.AnyEvent] = []
    number, done = state.save_requested, max(state.save_answered, state.save_proven)
    if number > done and any(slot.save_answered >= number for slot in slots):
        found.append(e.RequestAnswered(request="save", sequence=number, step=step))
    refused = any(slot.save_refused >= number for slot in slots)
    if number > max(done, state.save_refused) and refused:
        found.append(e.RequestRefused(request="save", sequence=number, step=step))
    asked = state.stop_asked
    if asked is not None and asked.answered_mono is None:
        number = asked.sequence
        if any(slot.stop_answered >= number > 0 for slot in slots):
            found.append(e.RequestAnswered(request="stop", sequence=number, step=step))
        if not asked.refused and any(slot.stop_refused >= number > 0 for slot in slots):
            found.append(e.RequestRefused(request="stop", sequence=number, step=step))
    return found
