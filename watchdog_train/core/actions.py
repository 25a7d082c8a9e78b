"""What decide() sees and what it may answer. Values only; the supervisor performs them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from watchdog_train.core.detection.detect import Signs, Verdict
from watchdog_train.core.detection.track import Sleep
from watchdog_train.core.events import AnyEvent, CommandResult, KillSequence, KillStage
from watchdog_train.core.fold.state import Machine
from watchdog_train.core.model import (
    Ahead,
    BundleWhy,
    EvidenceResult,
    ExitStatus,
    JointAnswer,
    KeepAnswer,
    MemberSample,
    Plan,
    ProcessId,
    RankPlaces,
    RestoreAnswer,
    Sample,
    SaveRecord,
    ScanLevel,
    Straggler,
    Survey,
    TrainingReport,
    Value,
    Why,
    together,
)
from watchdog_train.core.model.gpu import GpuHold
from watchdog_train.core.notices.notes import TaskNote

TaskName = Literal["look", "evidence", "survey", "joint", "keep", "restore", "commands"]


UNHEARD_S = 10.0
"""Seconds. An agent reports every second; an older report says nothing about the present."""


class Request(Value, tag=True):
    kind: Literal["stop", "stop_now", "interrupt", "save", "dump"]
    by: str
    relayed: bool = False
    """Passed on by another task of the job."""


class LaunchReport(Value):
    """The keeper's report on the start of an attempt: the root, or why it did not start."""

    root: ProcessId | None
    keeper: ProcessId
    error: str | None = None
    lost: bool = False
    """The keeper exited before it started anything."""


class SettingReport(Value):
    remedy: str
    pid: int
    took: bool
    why: str


class HookReport(Value):
    hook: str
    pid: int
    status: Literal["skipped", "failed"]
    why: str


class Told(Value):
    """What the training reported, and what its machine is short of; for one machine or for all."""

    settings: tuple[SettingReport, ...] = ()
    places: tuple[RankPlaces, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    not_resumed: str | None = None
    """Why a hook has not passed the plan's checkpoint to the script; from the training."""
    gpu_hold: GpuHold | None = None
    """Before a restart: who holds the GPU memory it needs. None: unknown, or no GPU."""
    gpu_trouble: str | None = None
    """Why the GPUs will stay unknown from now on."""
    short: str | None = None
    """Between two attempts: why nothing can be started, not even a scan of the checkpoints."""
    no_room: str | None = None
    """Before a restart: why the run directory has no room for the files of the next attempt."""


class TreeSight(Value):
    sample: Sample
    launch: LaunchReport | None = None
    exit: ExitStatus | None = None
    exited_at: float = 0.0
    """When the exit was reported; 0: on another machine."""
    last_words: tuple[MemberSample, ...] = ()
    """After the root's exit: the judged processes with the last values of their slots."""
    running: frozenset[TaskName] = frozenset()
    """Stack samples and collections under way."""
    look: EvidenceResult | None = None
    evidence: EvidenceResult | None = None
    told: Told = Told()
    is_heard: bool = True
    """This supervisor received a recent report: the sample is current."""
    obeyed_at: float = 0.0
    """When its agent acknowledged the newest order; inf: not yet."""
    silent_s: float = 0.0
    """Since its agent's last report; before the first one, since the leader listens."""
    agent: Machine | None = None
    """The machine as its agent reported it; None: the supervisor's own, or no report yet."""
    other: int = 0
    """An attempt running there that no leader of this run started."""
    sees: bool | None = True
    """Whether the machine sees the checkpoint of the next plan; None: not known yet."""

    @property
    def host(self) -> str:
        return self.sample.machine


class Observation(Told, dict=True):
    now: float
    wall: float
    trees: tuple[TreeSight, ...]
    """One per machine, also before the first attempt; the supervisor's own is first."""
    sample: Sample
    """Of all machines together."""
    verdict: Verdict
    request: Request | None = None
    running: frozenset[TaskName] = frozenset()
    """Tasks that run for all machines together."""
    survey: Survey | None = None
    joint: JointAnswer | None = None
    kept: KeepAnswer | None = None
    restored: RestoreAnswer | None = None
    commands: tuple[CommandResult, ...] | None = None
    """Results of the user's commands before a restart."""
    saves: tuple[SaveRecord, ...] = ()
    """Finished saves of the present attempt, oldest first; read only if copies may be kept."""
    other_port: int | None = None
    """A free port for the rendezvous, if MASTER_PORT is taken between two attempts."""
    training: TrainingReport | None = None
    resume_options: tuple[str, ...] = ()
    """Arguments by which the script may resume, from its own parser."""
    tasks: tuple[tuple[int, TaskNote], ...] = ()
    """Of a queue, with the pid of the process that ran it last."""
    last_save: SaveRecord | None = None
    bundles: int = 0
    """Largest number of a bundle on disk: `wtrain dump` makes bundles independently."""
    signs: Signs = Signs()
    busy_at: float = 0.0
    """When they last did work: CPU, I/O, network, births or deaths."""
    resumed_step: int | None = None
    """The checkpoint's step, once the training has loaded the plan's checkpoint."""
    slept: Sleep | None = None
    """The newest sleep of the machine, or of the supervisor."""
    straggler: Straggler | None = None
    ahead: tuple[Ahead, ...] | None = None
    """What will fail later if this continues; None: not being checked."""
    no_save_room: str | None = None
    """Before a restart: why its next save would be cut short as the last one was."""
    blind: str | None = None
    """Why processes cannot be read now; the sample is an old one."""
    steps_s: float | None = None
    """Recent steps per second; None until they are steady."""

    def of(self, host: str) -> TreeSight:
        """The view of one machine; empty if it does not report, so nothing there has ended."""
        sight = self._by_host.get(host)
        return sight or TreeSight(sample=together((), at=self.now, host=host))

    @cached_property
    def _by_host(self) -> dict[str, TreeSight]:
        return {sight.host: sight for sight in self.trees}

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sight.host for sight in self.trees)

    @property
    def is_collecting(self) -> bool:
        """Whether a collection runs on a machine that reports."""
        return any(sight.is_heard and "evidence" in sight.running for sight in self.trees)


class Wait(Value):
    until: float
    decides: bool = False
    """The end of this wait decides something: sample the processes at that moment."""
    idle: bool = False
    """Nothing is under way: the supervisor may sleep past `until`, an event wakes it."""


class Record(Value):
    events: tuple[AnyEvent, ...]
    consumes: tuple[TaskName, ...] = ()
    """Task results that these events have used."""
    host: str = ""
    """Whose evidence, if it is one machine's."""


class Launch(Value, tag=True):
    plan: Plan
    hosts: tuple[str, ...]
    """Each gets one order."""


class StartLook(Value, tag=True):
    host: str
    verdict: Verdict
    device: bool = False
    """With native stacks and local variables of the ranks, for which each rank is stopped."""


class StartEvidence(Value, tag=True):
    host: str
    stall_id: str
    bundle_why: BundleWhy
    kind: str
    """The verdict's word in the bundle: hang, crash, manual or busy."""
    verdict: Verdict


class StartJoint(Value):
    bundles: tuple[str, ...]
    """Their directories; this run's own is first."""


class StartSurvey(Value):
    level: ScanLevel
    again: bool = False
    """The scan before failed: this one gets more time."""


class Signal(Value, tag=True):
    host: str
    sequence: KillSequence
    stage: KillStage
    targets: tuple[ProcessId, ...]
    signal: int
    """0: send nothing, only wait."""
    why: Why
    group: bool = False
    """A target that leads a process group is signalled with its group (Ctrl-C)."""


class AskStop(Value, tag=True):
    can_be_asked: bool
    why: Why
    step: int | None
    expects_save: bool
    """The training saves before it exits."""


class AskSave(Value, tag=True):
    can_be_asked: bool
    by: str
    number: int = 0
    """Lowest number for this request of the run; 0: the next one."""


class RunCommands(Value):
    """Run the user's commands before a restart; a later observation has the results."""

    plan: Plan
    """Of the next attempt."""
    commands: tuple[int, ...]


class KeepCopy(Value):
    save: SaveRecord


class RestoreCopy(Value):
    """Put a kept copy back to the path of the torn file."""

    path: str
    saved_at: float
    """Of the torn file."""
    copy: str


class CleanUp(Value, tag=True):
    """After the exit of the tree: remove what it left in shared memory, and report that."""

    host: str


class Several(Value):
    """Actions for several machines, independent of each other."""

    actions: tuple[Action, ...]


def on_each(actions: Iterable[Action | None]) -> Action | None:
    """The actions due now, on all machines; if all wait, the shortest wait."""
    waits: list[Wait] = []
    now: list[Action] = []
    for action in actions:
        if isinstance(action, Wait):
            waits.append(action)
        elif action is not None:
            now.append(action)
    if len(now) > 1:
        return Several(actions=tuple(now))
    return now[0] if now else min(waits, key=lambda wait: wait.until, default=None)


Action = (
    Several
    | Wait
    | Record
    | Launch
    | StartLook
    | StartEvidence
    | StartJoint
    | StartSurvey
    | Signal
    | AskStop
    | AskSave
    | CleanUp
    | KeepCopy
    | RestoreCopy
    | RunCommands
)
