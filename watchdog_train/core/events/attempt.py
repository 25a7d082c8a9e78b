"""One attempt: launched, seen to work, and gone."""

from typing import Literal

import msgspec

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import (
    Daemon,
    Member,
    PhaseRanks,
    Plan,
    RankEnd,
    RankPlaces,
    RunProgress,
    Why,
)


class AttemptLaunching(Event):
    """Intent."""

    token: str
    plan: Plan
    where: tuple[str, ...] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="hosts")
    """Its machines, where the supervisor's is not the only one."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return ("",) if self.where is msgspec.UNSET else self.where


class LaunchPostponed(Event):
    """Nothing was started, for want of something that may be there again: its plan still stands."""

    why: Why


class AttemptLaunched(TreeEvent):
    pid: int
    start: int
    keeper_pid: int
    keeper_start: int


class FirstBeat(Event):
    rank: int
    pid: int
    after_s: float


class FirstStep(Event):
    rank: int
    pid: int
    step: int
    after_s: float
    resume: Why | None = None
    """How a restart will resume."""
    can_save: bool = False
    """A hook of a framework listens for requests to save."""


class Progress(Event):
    """Sampled; also what has changed in the tree, so that an adopting supervisor knows it."""

    progress: RunProgress
    ranks: tuple[PhaseRanks, ...]
    members: tuple[Member, ...] | msgspec.UnsetType = msgspec.UNSET
    """Those that are new, or are known better than before; each as a list of its fields."""
    gone: dict[str, tuple[int, ...]] | msgspec.UnsetType = msgspec.UNSET
    """By machine, empty for this one: the pids of members that are no more."""

    @property
    def is_census(self) -> bool:
        """It cannot be left out: the next one tells only what has changed since."""
        return self.members is not msgspec.UNSET or self.gone is not msgspec.UNSET


class Milestones(Event):
    """Where the ranks are on their way: at the first step, at a stall and at the end."""

    ranks: tuple[RankPlaces, ...]
    """At most 32; times are of the monotonic clock, as `mono`."""
    resume_options: tuple[str, ...] = ()
    """Arguments by which the script may resume, {checkpoint} for the path of one."""


class HookNotArmed(Event):
    """The client does not watch a library: wrong version, or the hook failed. Weaker signals do."""

    hook: str
    status: Literal["skipped", "failed"]
    pid: int
    why: Why


class RankEnded(TreeEvent):
    """A rank process has ended while others of its job live."""

    end: RankEnd


class DaemonsJudged(Event):
    """Processes outside the training's session: killed with it, or left. Told before a kill."""

    daemons: tuple[Daemon, ...]
    """New ones, and those whose judgement has changed."""


class TreeGone(TreeEvent):
    shared_memory_removed: tuple[str, ...] = ()
    """Semaphores included."""
    left: tuple[Daemon, ...] = ()
    """What the attempts of this run have started, lives, and is not ours to kill."""


class AttemptExited(TreeEvent):
    code: int | None
    signal: int | None
    how_known: str
    """keeper-file, keeper; after the keeper's death parent (this supervisor had become its parent)
    or kernel; gone: nobody knows; not-started."""
    step: int | None
    load_begun: bool = False
    """A process had begun to load the checkpoint of the plan."""
    saves: int = 0
    """Saves that had ended."""
    trainings: int = 0
    """Calls of train() or fit() of a framework, in one process at most."""
    error: Why | None = None
