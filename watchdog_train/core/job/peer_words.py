"""What people and the end of a job have to say to all its tasks, as parts of a record. Pure."""

from __future__ import annotations

from typing import Literal

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Outcome, Value, Why
from watchdog_train.core.recovery.outcome import EXIT_GAVE_UP


class GaveUp(Value, frozen=True, kw_only=True):
    """A decision that no further attempt is due."""

    why: Why
    exit_code: int
    outcome: Outcome


class StopWord(Value, frozen=True, kw_only=True):
    """A person wants the job to end."""

    by: str
    mode: Literal["soft", "now"]
    exit_code: int
    relayed: bool = False
    """It was another task that this person asked; `by` names it."""
    saved: str | None = None
    """The whole checkpoint that the training has made before it ended."""
    saved_step: int | None = None


class SaveWord(Value, frozen=True, kw_only=True):
    """The newest request to save."""

    number: int
    """The same on all pages: that is how the ranks of all tasks know what they agree on."""
    attempt: int
    """To which it was made; it is none to another."""
    by: str
    can_be_asked: bool
    relayed: bool = False
    """As in StopWord."""
    proven: int = 0
    """The newest request after which a whole checkpoint was found."""
    saved: str | None = None
    """That checkpoint."""
    saved_step: int | None = None


def save_word(state: State) -> SaveWord | None:
    """What this task tells of saves, None before the first request."""
    if not state.save_requested:
        return None
    return SaveWord(
        number=state.save_requested,
        attempt=state.save_attempt,
        by=state.save_by,
        can_be_asked=state.can_be_asked_to_save,
        relayed=state.save_relayed,
        proven=state.save_proven,
        saved=state.saved,
        saved_step=state.saved_step,
    )


def stop_word(state: State) -> StopWord | None:
    """What this task tells of its stop, None without one."""
    stop, asked = state.stop, state.stop_asked
    if stop is None:
        return None
    return StopWord(
        by=stop.by,
        mode=stop.mode,
        exit_code=stop.exit_code,
        relayed=stop.relayed,
        saved=asked.saved if asked is not None else None,
        saved_step=asked.saved_step if asked is not None else None,
    )


def gave_up(state: State) -> GaveUp | None:
    """That this task sees no further attempt, None while it may."""
    if state.given_up is None:
        return None
    return GaveUp(
        why=state.given_up,
        exit_code=state.given_up_code if state.given_up_code is not None else EXIT_GAVE_UP,
        outcome=state.given_up_outcome or "gave_up",
    )
