"""Checkpoint formats of other packages: entry points of the group watchdog_train.checkpoints.

An entry point names a class (or a function) that gives a Format when called without arguments. It
is loaded only when checkpoints are looked at, never in the supervisor's own process. What a plugin
raises is kept as a problem, and costs nothing but the checkpoints of that one format.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from typing import TypeVar

from watchdog_train.checkpoints.files import Listing
from watchdog_train.checkpoints.formats import (
    Candidate,
    Format,
    Limits,
    Verdict,
    by_number_then_time,
)

GROUP = "watchdog_train.checkpoints"
OFF = "WTRAIN_NO_PLUGINS"
"""Environment variable: 1 leaves all plugins out."""
_MOST = 32
_LONGEST = 300
_Answer = TypeVar("_Answer")


class Problems(list[str]):
    """What went wrong with plugins, each said once."""

    def say(self, text: str) -> None:
        """Keep it, bounded."""
        text = " ".join(text.split())[:_LONGEST]
        if text not in self and len(self) < _MOST:
            self.append(text)


class Guarded:
    """A plugin's format that cannot fail."""

    def __init__(self, inner: Format, where: str, problems: Problems) -> None:
        self._inner, self._where, self._problems = inner, where, problems
        self.name = str(inner.name)
        self.owns_directory = bool(inner.owns_directory)
        self.resume_hint = str(inner.resume_hint)

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """The plugin's candidates below its own name; none when it fails."""

        def ask() -> tuple[Candidate, ...]:
            found = tuple(self._inner.find(listing))
            if any(not isinstance(one, Candidate) or one.format != self.name for one in found):
                raise TypeError("find() gave something that is no candidate of this format")
            return found

        return self._ask("find", ask, ())

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Its order, or by number and time when it loses some."""

        def ask() -> tuple[Candidate, ...]:
            ordered = tuple(self._inner.newest_first(candidates))
            if {one.path for one in ordered} != {one.path for one in candidates}:
                raise ValueError("newest_first() gave other candidates than it got")
            return ordered

        return self._ask("newest_first", ask, by_number_then_time(candidates))

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Its verdict; unknown when it fails."""

        def ask() -> Verdict:
            verdict = self._inner.check(candidate, limits)
            if not isinstance(verdict, Verdict):
                raise TypeError("check() gave no verdict")
            return verdict

        unknown = Verdict(whole=None, why=f"{self._where} has failed", how_checked="quick")
        return self._ask("check", ask, unknown)

    def _ask(self, what: str, ask: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - a border: recorded, and the survey goes on
            said = f"{type(error).__name__}: {error}"
            self._problems.say(f"{self._where} has failed in {what}(): {said}")
            return otherwise


def load(taken: frozenset[str], problems: Problems) -> tuple[Format, ...]:
    """The formats of all plugins.

    Args:
        taken: names of formats that are known already.
        problems: what could not be loaded is said here, with the distribution it is from.
    """
    if os.environ.get(OFF) == "1":
        return ()
    found: dict[str, Format] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda one: one.name)[:_MOST]:
        distribution = entry.dist.name if entry.dist is not None else "?"
        where = f"the checkpoint plugin {entry.name} (of {distribution})"
        try:
            made = Guarded(entry.load()(), where, problems)
        except Exception as error:  # noqa: BLE001 - a border: recorded
            problems.say(f"{where} cannot be loaded: {type(error).__name__}: {error}")
            continue
        if made.name in taken or made.name in found:
            problems.say(f"{where} is left out: there is a format {made.name} already")
            continue
        found[made.name] = made
    return tuple(found.values())
