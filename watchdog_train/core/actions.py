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
"""An agent says a word every second; what it has said longer ago tells nothing of now."""


class Request(Value, tag=True):
    kind: Literal["stop", "stop_now", "interrupt", "save", "dump"]
    by: str
    relayed: bool = False
    """An agent was asked."""


class LaunchReport(Value):
    """What the keeper wrote about the start of an attempt: the root, or why there is none."""

    root: ProcessId | None
    keeper: ProcessId
    error: str | None = None
    lost: bool = False
    """The keeper has ended before anything was started."""


class SettingReport(Value):
    remedy: str
    pid: int
    took: bool
    why: str


class HookReport(Value):
    """A hook that a training process could not arm."""

    hook: str
    pid: int
    status: Literal["skipped", "failed"]
    why: str


class Told(Value):
    """What a training says in words, and what its machine lacks: of one machine, or of all."""

    settings: tuple[SettingReport, ...] = ()
    places: tuple[RankPlaces, ...] = ()
    """Milestones of the judged processes."""
    hooks: tuple[HookReport, ...] = ()
    not_resumed: str | None = None
    """Why a hook has not handed over the checkpoint of the plan, in the training's words."""
    gpu_hold: GpuHold | None = None
    """Before a restart: who holds the GPU memory that it needs; None: not known, or no GPU."""
    gpu_trouble: str | None = None
    """Why nothing will be known of the GPUs any more."""
    short: str | None = None
    """Between two attempts: why nothing can be started, not even a scan of the checkpoints."""
    no_room: str | None = None
    """Before a restart: why the run directory cannot take the files of the next attempt."""


class TreeSight(Value):
    sample: Sample
    launch: LaunchReport | None = None
    exit: ExitStatus | None = None
    exited_at: float = 0.0
    """When that was heard; 0: on another machine."""
    last_words: tuple[MemberSample, ...] = ()
    """Once the root has ended: the judged processes with what their slots said last."""
    running: frozenset[TaskName] = frozenset()
    """A look, a collection."""
    look: EvidenceResult | None = None
    evidence: EvidenceResult | None = None
    told: Told = Told()
    is_heard: bool = True
    """By this supervisor, of late: what was seen is what there is."""
    obeyed_at: float = 0.0
    """When its agent was known to carry out what it was last told to send; inf: not yet."""
    silent_s: float = 0.0
    """Since its agent was heard; before the first time, since somebody listens."""
    agent: Machine | None = None
    """Who speaks for it; None: it is the supervisor's own, or was never heard."""
    other: int = 0
    """An attempt that lives there, and that no leader of this run has begun."""
    sees: bool | None = True
    """Whether the checkpoint of the next plan is there; None: not known yet."""

    @property
    def host(self) -> str:
        return self.sample.machine


class Observation(Told, dict=True):
    now: float
    wall: float
    trees: tuple[TreeSight, ...]
    """One a machine, also before the first attempt; the supervisor's own is the first."""
    sample: Sample
    """Of all of them together."""
    verdict: Verdict
    request: Request | None = None
    running: frozenset[TaskName] = frozenset()
    """What runs for all machines."""
    survey: Survey | None = None
    joint: JointAnswer | None = None
    kept: KeepAnswer | None = None
    restored: RestoreAnswer | None = None
    commands: tuple[CommandResult, ...] | None = None
    """What became of the user's commands before a restart."""
    saves: tuple[SaveRecord, ...] = ()
    """Finished saves of the present attempt, oldest first; read where a copy may be kept."""
    other_port: int | None = None
    """A free port for the ranks to meet at, when MASTER_PORT is taken between two attempts."""
    training: TrainingReport | None = None
    resume_options: tuple[str, ...] = ()
    """Arguments by which the script may resume, as its own parser knows them."""
    tasks: tuple[tuple[int, TaskNote], ...] = ()
    """Of a queue, with the pid of the process that ran it last."""
    last_save: SaveRecord | None = None
    bundles: int = 0
    """Largest number of a bundle on disk: `wtrain dump` makes some without asking us."""
    signs: Signs = Signs()
    busy_at: float = 0.0
    """When they were last seen to work: CPU, I/O, network, births and deaths."""
    resumed_step: int | None = None
    """The checkpoint's step, once the training itself has loaded the checkpoint of the plan."""
    slept: Sleep | None = None
    """The newest sleep of the machine, or of ours."""
    straggler: Straggler | None = None
    """The rank that comes last, while one does."""
    ahead: tuple[Ahead, ...] | None = None
    """What will go wrong if it goes on like this; None: nobody looks ahead."""
    no_save_room: str | None = None
    """Before a restart: why its next save would end half-written, as the last one has."""
    blind: str | None = None
    """Why no process can be looked at now; the sample is an old one."""
    steps_s: float | None = None
    """Steps per second of late; None until they are steady."""

    def of(self, host: str) -> TreeSight:
        """What was seen of one machine; of one that is not heard of nothing, so nothing is over."""
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
        """Whether a collection runs on some machine that is heard."""
        return any(sight.is_heard and "evidence" in sight.running for sight in self.trees)


class Wait(Value):
    until: float
    decides: bool = False
    """A limit is over then: the processes are to be sampled at that moment."""
    idle: bool = False
    """Nothing is under way: what ends it wakes us."""


class Record(Value):
    events: tuple[AnyEvent, ...]
    consumes: tuple[TaskName, ...] = ()
    """Task results that these events have used up."""
    host: str = ""
    """Whose evidence, where that is one of them."""


class Launch(Value, tag=True):
    plan: Plan
    hosts: tuple[str, ...]
    """One order goes to each."""


class StartLook(Value, tag=True):
    host: str
    verdict: Verdict
    device: bool = False
    """With native stacks and local variables of the ranks, for which each is stopped."""


class StartEvidence(Value, tag=True):
    host: str
    stall_id: str
    bundle_why: BundleWhy
    kind: str
    """hang, crash, manual or busy: the verdict's word in the bundle."""
    verdict: Verdict


class StartJoint(Value):
    """Diagnose the evidence of all tasks of a job together."""

    bundles: tuple[str, ...]
    """Their directories, our own first."""


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
    """0: nothing is sent, the stage only waits."""
    why: Why
    group: bool = False
    """Targets that lead a process group get it with their group (Ctrl-C)."""


class AskStop(Value, tag=True):
    can_be_asked: bool
    why: Why
    step: int | None
    """The newest step at that moment."""
    expects_save: bool
    """It saves before it ends."""


class AskSave(Value, tag=True):
    can_be_asked: bool
    by: str
    number: int = 0
    """Which request of the run this is at least; 0: the next one."""


class RunCommands(Value):
    """Run the user's commands before a restart; their end is an observation."""

    plan: Plan
    """Of the attempt to come."""
    commands: tuple[int, ...]


class KeepCopy(Value):
    """Copy a file that the script overwrites in place into the run directory."""

    save: SaveRecord


class RestoreCopy(Value):
    """Put a kept copy back to the path of the file that was torn."""

    path: str
    saved_at: float
    """Of the torn file."""
    copy: str


class CleanUp(Value, tag=True):
    """The tree is gone: remove what it left in shared memory, and say so."""

    host: str


class Several(Value):
    """To be done now, each on a machine of its own: none of them changes what the next needs."""

    actions: tuple[Action, ...]


def on_each(actions: Iterable[Action | None]) -> Action | None:
    """What is to be done now, on all machines; where all wait, the one that waits least."""
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
