"""The page of a run: plain at once, whole by a child with a deadline; never in the way of the run.

Must not be waited for while training runs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.reporting import WITHIN_S
from watchdog_train.supervisor.children import ChildTable, Helper, module

END_WITHIN_S = 15.0
"""At the end of a run somebody waits; the plain page is there already."""
LONG_RUN_S = 60.0
"""A shorter run that ends well has the page of its log alone, in no time."""
WAITED_S = 60.0
"""A wait that has lasted so long, and is given as much again, is worth a page."""
WAITS_EVERY_S = 600.0
"""A training may wait in each epoch; a page costs about a second of a CPU."""
_TOLD = (e.EvidenceCollected, e.StallExplained, e.WouldHaveKilled, e.StallRecovered)


def command(run_dir: Path) -> Sequence[str]:
    """The child that writes the whole page."""
    return module("watchdog_train.reporting", str(run_dir))


class ReportPage:
    """Has the page written anew after what is worth reading, one child at a time."""

    def __init__(self, children: ChildTable, run_dir: Path) -> None:
        self._helper = Helper(children, "report")
        self._run_dir = run_dir
        self._due = self._shows_wait = False
        self._next_wait = 0.0

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """A stall has got its evidence or its diagnosis, or was over; the same of a long wait."""
        told = isinstance(event, _TOLD) or self._is_news_of_a_wait(event, state)
        self._due = self._due or told

    def _is_news_of_a_wait(self, event: e.AnyEvent, state: State) -> bool:
        match event:
            case e.Looked() if not self._shows_wait and event.mono >= self._next_wait:
                limit_s = event.limit_s if event.limit_s is not None else float("inf")
                left_s = event.since_mono + limit_s - event.mono
                self._shows_wait = min(event.mono - state.silent_since, left_s) >= WAITED_S
                if self._shows_wait:
                    self._next_wait = event.mono + WAITS_EVERY_S
                return self._shows_wait
            case e.SuspicionEnded() | e.StallDeclared() if self._shows_wait:
                self._shows_wait = False
                return True
            case _:
                return False

    def write(self) -> None:
        """Start the child if it is due and none runs; returns at once."""
        if not self._due or self._helper.running:
            return
        self._due = False
        # A page that cannot be written now is written at the end of the run, which says so.
        with suppress(OSError):
            self._helper.start(command(self._run_dir), deadline_s=WITHIN_S)


def deserves_whole_page(state: State) -> bool:
    """Whether somebody will want more than the plain page."""
    if state.stalls or state.outcome != "succeeded" or state.restarts:
        return True
    if state.started_at is None or state.updated_at is None:
        return False
    return state.updated_at - state.started_at >= LONG_RUN_S


def write_whole_now(run_dir: Path) -> str | None:
    """Wait for the whole page, at most END_WITHIN_S; why there is only the plain one, or None."""
    try:
        subprocess.run(
            list(command(run_dir)),
            check=True,
            timeout=END_WITHIN_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"it was not written within {END_WITHIN_S:.0f} s"
    except (subprocess.CalledProcessError, OSError) as error:
        return str(error)[:200]
    return None
