"""One attempt: launched, seen to work, asked to save or stop, signalled, and gone."""

from typing import Literal

import msgspec

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import (
    Daemon,
    Member,
    PhaseRanks,
    Plan,
    ProcessId,
    RankEnd,
    RankPlaces,
    RunProgress,
    Value,
    Why,
)


class AttemptLaunching(Event):
    """Intent."""

    token: str
    plan: Plan
    where: tuple[str, ...] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="hosts")
    """Its machines, if the supervisor's is not the only one."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return ("",) if self.where is msgspec.UNSET else self.where


class LaunchPostponed(Event):
    """Nothing was started for lack of something that may return; the plan stays."""

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
    """Sampled; with changes in the tree, so that an adopting supervisor knows it."""

    progress: RunProgress
    ranks: tuple[PhaseRanks, ...]
    members: tuple[Member, ...] | msgspec.UnsetType = msgspec.UNSET
    """Members that are new or have changed; each as a list of its fields."""
    gone: dict[str, tuple[int, ...]] | msgspec.UnsetType = msgspec.UNSET
    """By machine, empty for this one: the pids of members that have ended."""

    @property
    def is_census(self) -> bool:
        """It must not be left out: the next one holds only later changes."""
        return self.members is not msgspec.UNSET or self.gone is not msgspec.UNSET


class Milestones(Event):
    """Milestones of the ranks (startup, marks): at the first step, at a stall and at the end."""

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
    """Processes outside the training's session: killed with it, or left. Recorded before a kill."""

    daemons: tuple[Daemon, ...]
    """New ones, and those whose judgement has changed."""


class TreeGone(TreeEvent):
    shared_memory_removed: tuple[str, ...] = ()
    """Semaphores included."""
    left: tuple[Daemon, ...] = ()
    """Live processes started by attempts of this run that wtrain does not kill."""


class AttemptExited(TreeEvent):
    code: int | None
    signal: int | None
    how_known: str
    """keeper-file, keeper; after the keeper's death parent (this supervisor had become its parent)
    or kernel; gone: unknown; not-started."""
    step: int | None
    load_begun: bool = False
    """A process had begun to load the plan's checkpoint."""
    saves: int = 0
    """Saves that had ended."""
    trainings: int = 0
    """Calls of train() or fit() of a framework, in one process at most."""
    error: Why | None = None


class StopRequested(Event):
    by: str
    mode: Literal["soft", "now"]
    exit_code: int
    """77 for stop and SIGTERM, 130 for Ctrl-C."""
    relayed: bool = False
    """Passed on by another task of the job, which `by` names."""


class SaveRequested(Event):
    by: str
    sequence: int
    can_be_asked: bool


class SaveProven(Event):
    """A checkpoint that was finished after the request is valid."""

    sequence: int
    path: str
    step: int | None
    request: Literal["save", "stop"] = "save"


class StopAsked(Event):
    """The control page's stop-request was raised."""

    sequence: int
    can_be_asked: bool
    why: Why
    step: int | None = None
    """The newest step at that moment."""
    expects_save: bool = False
    """The training saves before it exits."""


class RequestAnswered(Event):
    """A rank has taken a request from the control page, at the end of a step."""

    request: Literal["save", "stop"]
    sequence: int
    step: int | None


class RequestRefused(Event):
    """The ranks of several supervisors found no common step for it."""

    request: Literal["save", "stop"]
    sequence: int
    step: int | None


KillStage = Literal["ask", "root", "freeze", "terminate", "kill", "helpers", "launchers", "keeper"]


KillSequence = Literal["hang", "stop", "now", "sweep"]


class Signalling(TreeEvent):
    """Intent: one stage of a kill sequence begins."""

    sequence: KillSequence
    stage: KillStage
    targets: tuple[ProcessId, ...]
    signal: int
    why: Why


class SentSignal(Value):
    pid: int
    start: int
    signal: int
    role: str
    result: Literal["sent", "gone", "denied", "not-ours", "ordered"]
    """ordered: its agent received the order to send it."""


class Signalled(TreeEvent):
    """What one order has sent; an event for each process was 24,553 for 1,024 machines."""

    sent: tuple[SentSignal, ...]


class SurvivedKill(TreeEvent):
    pids: tuple[int, ...]
    why: Why
