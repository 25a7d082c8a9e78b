"""Silence, from the first suspicion to the diagnosis, and what is worth a word."""

from typing import Literal

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import (
    Basis,
    BundleWhy,
    CapturedProcess,
    CrashFact,
    Difference,
    Explanation,
    Missing,
    Patience,
    Phase,
    SilentAt,
    Straggler,
    Why,
)


class Suspected(Event, frozen=True, kw_only=True):
    basis: Basis
    phase: Phase
    ranks: tuple[int, ...]
    age_s: float
    why: Why


class Looked(Event, frozen=True, kw_only=True):
    """The cheap look between suspicion and decision."""

    patience: Patience
    why: Why | None = None
    """Where there is no explanation."""
    explanation: Explanation | None = None
    since_mono: float = 0.0
    """From when on this patience counts: the beginning of the silence, or of a shorter patience."""
    limit_s: float | None = None
    """Of this silence, with what it has earned besides; None: never."""
    roots: tuple[str, ...] = ()
    """Machines with a process that waits for no other rank."""


class SuspicionEnded(Event, frozen=True, kw_only=True):
    why: Why
    paused_s: float = 0.0
    """How long it was quiet; 0: not worth a word."""
    patience: Patience | None = None
    """What the last look had found."""
    at: SilentAt | None = None
    said: bool = False
    """A pause at the same line has been said before."""
    remembered: bool = False
    """Nothing else can have ended it, and it came near its limit: later runs know of it."""


class StallDeclared(Event, frozen=True, kw_only=True):
    stall_id: str
    basis: Basis
    phase: Phase
    ranks: tuple[int, ...]
    age_s: float
    why: Why
    at: SilentAt | None = None


class StallRecovered(Event, frozen=True, kw_only=True):
    stall_id: str
    why: Why


NoticeKind = Literal[
    "stopped",
    "input",
    "busy",
    "uninterruptible",
    "suspended",
    "keeper",
    "no-heartbeat",
    "save",
    "save-late",
    "not-whole",
    "joint",
    "peers",
    "gpu",
    "group",
    "blind",
    "no-progress",
    "room",
    "scan",
    "reader",
    "task",
    "metrics",
    "termination",
    "guilty",
]


WarningKind = Literal["disk", "memory", "gpu-shared", "unsaved"]


class Noticed(Event, frozen=True, kw_only=True):
    """Something a person should know that is no stall: stopped, waiting for input, busy, a save
    that a stop waits for, that nobody makes, or that is not whole.
    """

    kind: NoticeKind
    pids: tuple[int, ...]
    why: Why


class Slowdown(Event, frozen=True, kw_only=True):
    """Steps take three times as long as learnt, for ten minutes of training; once per episode.

    The limits of the ranks follow by themselves. Nothing is ended for it.
    """

    usual_s: float
    """Seconds of a step, as learnt."""
    step_s: float
    """The same now."""
    factor: float
    since_mono: float
    changed: tuple[Difference, ...]
    """What is different from before; empty: nothing that we can see."""


class SlowdownEnded(Event, frozen=True, kw_only=True):
    """Steps take less than twice as long as before again."""

    seconds: float
    """From its beginning."""
    why: Why


class Straggling(Event, frozen=True, kw_only=True):
    """A rank comes last in most steps; said again when it is another rank, or costs twice as much.
    Nothing is killed for it.
    """

    straggler: Straggler | None
    """None: no rank does any more."""


class Warned(Event, frozen=True, kw_only=True):
    """Something will go wrong before the end if it goes on like this. Nothing is done about it."""

    kind: WarningKind
    about: str
    """The place, of `disk`; else empty."""
    why: Why


class WarningOver(Event, frozen=True, kw_only=True):
    """What was warned of is not so any more."""

    kind: WarningKind
    about: str
    seconds: float
    """From the warning."""


class EvidenceCollecting(TreeEvent, frozen=True, kw_only=True):
    """Intent."""

    stall_id: str
    why: BundleWhy
    dir: str


class EvidenceCollected(TreeEvent, frozen=True, kw_only=True):
    stall_id: str
    why: BundleWhy
    dir: str
    captured: int
    missing: tuple[Missing, ...]
    processes: tuple[CapturedProcess, ...]
    seconds: float
    fingerprint: str | None
    problem: str | None
    crash: CrashFact | None = None
    """What ended the attempt, or the rank that the others wait for."""


class EvidenceMoved(Event, frozen=True, kw_only=True):
    """A bundle that the run directory had refused is in it now."""

    stall_id: str
    dir: str


class StallExplained(Event, frozen=True, kw_only=True):
    stall_id: str
    explanation: Explanation
    tasks: tuple[int, ...] = ()
    """Of a job, whose evidence it rests on together; empty: this run's alone."""
    host: str | None = None
    """The machine of its root, of a job on several."""


class WouldHaveKilled(Event, frozen=True, kw_only=True):
    """Report-only: what would have happened now."""

    stall_id: str
    why: Why
