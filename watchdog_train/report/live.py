"""What was measured beside the event log at the moment of asking; the renderers get it as data.

None everywhere means that it could not be measured, and is shown as unknown.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.model import RankPlaces, RankStatus, RunProgress, Value


class NewestCheckpoint(Value):
    """The newest save that is known of."""

    path: str
    format: str
    step: int | None
    saved_at: float | None = None
    """Unix seconds."""
    checked: bool = False
    """Whether a survey found it whole; else a save hook only saw that it was finished."""


class Live(Value):
    """One look at a run from outside, by a command that reads."""

    at: float
    """Unix seconds."""
    mono: float | None = None
    """Monotonic clock of the events; None on another machine or after a boot."""
    supervisor_alive: bool | None = None
    blind_s: float | None = None
    """The supervisor lives, but its loop has not turned for so long; None: it turns, or unknown."""
    here: bool = True
    """False: the run belongs to another machine, so nothing about its processes can be told."""
    is_copy: bool = False
    """The files are a copy of a run directory: they do not tell how the run is now."""
    ranks: tuple[RankStatus, ...] | None = None
    """From the heartbeat slots; None: no slot could be read, so the log's are the newest."""
    progress: RunProgress | None = None
    places: tuple[RankPlaces, ...] | None = None
    """Milestones as the ranks have written them down; None: none could be read."""
    can_save: bool | None = None
    can_stop: bool | None = None
    states: dict[int, str | None] = msgspec.field(default_factory=dict)
    """Of the recorded members that live, by pid."""
    checkpoint: NewestCheckpoint | None = None
    max_restarts: int | None = None
    """None: not known, or the settings restart for nothing."""
    report_only: bool = False
    """--observe: nothing is killed and nothing is started again."""
    log_tail: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read, in words."""
