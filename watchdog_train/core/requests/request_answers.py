"""What the ranks have said to requests since the last poll, as events. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.detection.track import judged
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import SlotReading


def answers(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Requests that a rank has taken since the last poll."""
    slots = [slot for _, slot in judged(observation.sample)]
    step = max((slot.step for slot in slots if slot.step is not None), default=None)
    found: list[e.AnyEvent] = []
    if state.save_requested > max(state.save_answered, state.save_proven) and any(
        slot.save_answered >= state.save_requested for slot in slots
    ):
        found.append(e.RequestAnswered(request="save", sequence=state.save_requested, step=step))
    asked = state.stop_asked
    if (
        asked is not None
        and asked.answered_mono is None
        and any(slot.stop_answered >= asked.sequence > 0 for slot in slots)
    ):
        found.append(e.RequestAnswered(request="stop", sequence=asked.sequence, step=step))
    return found + _refusals(slots, state, step)


def _refusals(slots: list[SlotReading], state: State, step: int | None) -> list[e.AnyEvent]:
    """Requests for which the ranks of several tasks have found no common step."""
    found: list[e.AnyEvent] = []
    asked, number = state.stop_asked, state.save_requested
    known = max(state.save_answered, state.save_proven, state.save_refused)
    if number > known and any(slot.save_refused >= number for slot in slots):
        found.append(e.RequestRefused(request="save", sequence=number, step=step))
    if (
        asked is not None
        and asked.answered_mono is None
        and not asked.refused
        and any(slot.stop_refused >= asked.sequence > 0 for slot in slots)
    ):
        found.append(e.RequestRefused(request="stop", sequence=asked.sequence, step=step))
    return found
