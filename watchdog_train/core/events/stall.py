"""Silence, from the first suspicion to the diagnosis, and what is worth a word."""

from typing import Literal

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import (
    Ahead,
    Basis,
    BundleWhy,
    CapturedProcess,
    CrashFact,
    Explanation,
    Missing,
    Patience,
    Phase,
    SilentAt,
    Straggler,
    Why,
)
from watchdog_train.core.model.gpu import DeviceLook


class Suspected(Event):
    basis: Basis
    phase: Phase
    ranks: tuple[int, ...]
    age_s: float
    why: Why


class Looked(Event):
    """A stack sample between suspicion and decision."""

    patience: Patience
    why: Why | None = None
    """Why there is no explanation."""
    explanation: Explanation | None = None
    since_mono: float = 0.0
    """When this limit began to count: at the silence, or at a change to a shorter limit."""
    limit_s: float | None = None
    """Of this silence, with all extensions; None: never."""
    times: int = 1
    """Samples in a row with this live-lock or this wait for GPUs; 0: it has moved."""
    device: DeviceLook | None = None
    """How ranks wait for their GPUs, by the newest sample that shows it."""
    roots: tuple[str, ...] = ()
    """Machines with a process that waits for no other rank."""


class SuspicionEnded(Event):
    why: Why
    paused_s: float = 0.0
    """How long it was quiet; 0: too short to report."""
    patience: Patience | None = None
    """From the last sample."""
    at: SilentAt | None = None
    said: bool = False
    """A pause at the same line was reported before."""


class StallDeclared(Event):
    stall_id: str
    basis: Basis
    phase: Phase
    ranks: tuple[int, ...]
    age_s: float
    why: Why
    at: SilentAt | None = None


class StallRecovered(Event):
    stall_id: str
    why: Why


NoticeKind = Literal[
    "stopped", "continued", "input", "busy", "live-lock", "uninterruptible", "suspended", "keeper",
    "no-heartbeat", "save", "save-late", "not-whole", "joint", "peers", "gpu", "blind",
    "no-progress", "room", "scan", "plugin", "reader", "task", "metrics", "termination", "goes-on",
    "outlives",
]  # fmt: skip


class Noticed(Event):
    """Something that a person should know and that is no stall; `kind` names it."""

    kind: NoticeKind
    pids: tuple[int, ...]
    why: Why


class Straggling(Event):
    """A rank comes last in most steps; repeated for another rank or twice the cost."""

    straggler: Straggler | None
    """None: no rank is last any more."""


class Warned(Event):
    """Something will fail before the end unless a person acts. wtrain does nothing about it."""

    ahead: Ahead
    over: bool = False
    """It is over."""


class EvidenceCollecting(TreeEvent):
    """Intent."""

    stall_id: str
    why: BundleWhy
    dir: str


class EvidenceCollected(TreeEvent):
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


class EvidenceMoved(Event):
    """A bundle that the run directory had refused is in it now."""

    stall_id: str
    dir: str


class StallExplained(Event):
    stall_id: str
    explanation: Explanation
    tasks: tuple[int, ...] = ()
    """Tasks of a job whose evidence it uses together; empty: this run's alone."""
    host: str | None = None
    """The machine of its root, of a job on several."""


class WouldHaveKilled(Event):
    """Report-only: what wtrain would have done now."""

    stall_id: str
    why: Why
