"""Pauses that ended by themselves twice at a place earn it more patience in later runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Patience, Pause

FACTOR = 1.5
"""Times the longest pause: the next one may be somewhat longer."""
MOST_S = 900.0
TIMES = 2
"""One pause may be chance."""
FORGOTTEN_S = 30.0
"""A pause that was halved to less than this earns nothing."""
MOST_PLACES = 64


def earned_s(state: State, patience: Patience) -> float:
    """What earlier runs have taught about the place of a wait; 0: nothing."""
    place = patience.place
    return max(
        (allowed_s(one) for one in state.learnt if place and one.place == place), default=0.0
    )


def allowed_s(pause: Pause) -> float:
    """The patience that a place has earned."""
    return min(MOST_S, FACTOR * pause.longest_s) if pause.times >= TIMES else 0.0


def is_worth_remembering(
    observation: Observation, state: State, patience: Patience, paused_s: float
) -> bool:
    """Whether a pause came near its limit, and nothing from outside can have ended it."""
    if patience.place is None or patience.limit_s is None or patience.row == "proven":
        return False
    if FACTOR * paused_s <= patience.limit_s:
        return False  # it would be spared again
    verdict = observation.verdict
    went_on = verdict.progress_at > state.suspicion_mono
    disturbed = verdict.disturbed_at > state.silent_since
    asked = state.stop is not None or state.save_wall >= observation.wall - paused_s
    dumped = any(one.declared_mono >= state.silent_since for one in state.stalls)
    return went_on and not (disturbed or asked or dumped)


def learn(
    known: Iterable[Pause], pauses: Iterable[Pause], *, directory: str, well: bool
) -> tuple[Pause, ...]:
    """The memory after a run, newest last.

    Args:
        known: the memory before it.
        pauses: of the run.
        directory: in which its training was started.
        well: it succeeded. Then what it did not need is halved, of trainings started there.
    """
    needed: dict[str | None, Pause] = {one.place: one for one in pauses if one.times and one.place}
    kept = []
    for one in known:
        again = needed.pop(one.place, None)
        if again is not None:
            needed[one.place] = msgspec.structs.replace(
                again,
                times=one.times + again.times,
                longest_s=max(one.longest_s, again.longest_s),
            )
        elif not (well and one.directory == directory):
            kept.append(one)
        elif one.longest_s / 2 >= FORGOTTEN_S:
            kept.append(msgspec.structs.replace(one, longest_s=one.longest_s / 2))
    found = [
        msgspec.structs.replace(
            one, directory=directory, longest_s=min(one.longest_s, MOST_S / FACTOR)
        )
        for one in needed.values()
    ]
    return (*kept, *found)[-MOST_PLACES:]
