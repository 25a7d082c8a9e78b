"""What is known about a run, as one frozen value; core.fold.evolve folds the events into it."""

from functools import cached_property
from typing import Literal

from watchdog_train.core.events import (
    CheckpointsShared,
    GivenUp,
    GpuMemoryHeld,
    HookNotArmed,
    KillSequence,
    KillStage,
    Looked,
    Noticed,
    StopRequested,
)
from watchdog_train.core.model import (
    Ahead,
    Basis,
    BundleWhy,
    CrashFact,
    Daemon,
    Explanation,
    GuiltyNode,
    KeptCopy,
    Member,
    Outcome,
    Phase,
    PhaseRanks,
    Place,
    Plan,
    ProcessId,
    RankEnd,
    RankPlaces,
    ResumeVerdict,
    RunProgress,
    SilentAt,
    Straggler,
    Value,
    Why,
)
from watchdog_train.core.model.explanation import Because
from watchdog_train.core.policy import Limits
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.core.starting.launchers import Launcher

RunState = Literal[
    "idle", "starting", "running", "collecting", "stopping", "killing", "backoff", "finished"
]


LASTING = (
    "keeper", "no-heartbeat", "save", "save-late", "not-whole", "peers", "gpu", "blind",
    "suspended", "reader", "task", "continued",
    "metrics", "termination", "goes-on", "outlives",
)  # fmt: skip
"""Kinds of `noticed` that outlast the silence in which they were said."""


PAUSES_REMEMBERED = 64


class StallRecord(Value):
    """One bundle: a stall, a crash or a manual dump."""

    id: str
    why: BundleWhy
    attempt: int
    at: float
    """Unix seconds."""
    declared_mono: float
    basis: Basis | None = None
    phase: Phase = "unknown"
    ranks: tuple[int, ...] = ()
    age_s: float | None = None
    verdict: Why = Why("unknown")
    """Of a stall: why it was declared."""
    suspected: Explanation | None = None
    """Of a stall: what the last stack sample before it told."""
    roots: tuple[str, ...] = ()
    """Machines where the last look found a process that waits for no other rank."""
    silent_at: SilentAt | None = None
    places: tuple[RankPlaces, ...] = ()
    """Milestones when it was declared."""
    places_mono: float = 0.0
    dir: str | None = None
    collecting: bool = False
    collected: bool = False
    captured: int = 0
    processes: int = 0
    fingerprint: str | None = None
    explanation: Explanation | None = None
    crash: CrashFact | None = None
    joint: bool = False
    """The explanation rests on the evidence of all tasks of the job."""
    culprit_host: str | None = None
    recovered: bool = False
    reported_only: bool = False
    """Nothing was killed for it, by the user's choice."""

    @property
    def because(self) -> Because | None:
        """Its cause, where that is known."""
        return self.explanation.because if self.explanation is not None else None

    @property
    def family(self) -> str | None:
        """The family of its cause."""
        return self.because.family if self.because is not None else None


class Postponed(Value):
    """A planned attempt that could not be started so far."""

    since: float
    """Monotonic seconds of the first try."""
    why: Why
    tries: int = 1


class Kill(Value):
    """A kill sequence under way."""

    sequence: KillSequence
    why: Why
    stage: KillStage | None = None
    stage_mono: float = 0.0
    targets: tuple[ProcessId, ...] = ()
    """Who has been signalled in this stage."""
    signal: int = 0


class Tree(Value):
    """The processes of one attempt on one machine."""

    host: str = ""
    """Empty: the machine of the supervisor."""
    launched: bool = False
    root: ProcessId | None = None
    keeper: ProcessId | None = None
    ended: bool = False
    ended_mono: float = 0.0
    code: int | None = None
    signal: int | None = None
    how_known: str | None = None
    error: Why | None = None
    evidence: str | None = None
    """The newest bundle that has what was taken on this machine."""
    kill: Kill | None = None
    survivors: tuple[int, ...] = ()
    lost: bool = False
    """Nothing is heard of its machine any more: what became of it is unknown."""
    gone_at: float | None = None
    """Unix seconds when nobody was left of it."""

    @property
    def gone(self) -> bool:
        return self.gone_at is not None

    @property
    def settled(self) -> bool:
        """Nothing more can be done about it."""
        return self.gone or self.lost or bool(self.survivors)

    @property
    def failed(self) -> bool:
        return self.ended and self.code != 0


LONG_ATTEMPT_S = 900.0
"""A start that hangs is called a stall before: 150 s without steps, 15 minutes for a poll."""


class AttemptRecord(Value, dict=True):
    """One attempt, from its plan to its end."""

    attempt: int
    plan: Plan
    token: str
    launching_mono: float
    trees: tuple[Tree, ...] = (Tree(),)
    """One a machine."""
    first_beat_s: float | None = None
    first_step_s: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    trained: bool = False
    """A rank was seen in training, evaluation or a save, whether or not its steps are counted."""
    load_begun: bool = False
    """It had begun to load the checkpoint of its plan."""
    saves: int = 0
    """Saves that had ended when it did."""
    trainings: int = 0
    """Calls of train() or fit() in one process, at most."""
    stall_id: str | None = None
    """The stall that ended it, None when it ended by itself."""
    crash_id: str | None = None
    crash: CrashFact | None = None
    """What ended it, or the rank that the others waited for; None: not known."""
    reported: tuple[str, ...] = ()
    """Remedies about which the training process has said something."""
    taken: tuple[str, ...] = ()
    """Remedies that reported back that they took."""
    fastest_steps_s: float | None = None
    """The best pace that was recorded, steps a second."""
    resume: ResumeVerdict | None = None

    @property
    def began(self) -> bool:
        """It came to its training, as far as steps, phases and its length tell."""
        long = self.ended and self.ended_mono - self.launching_mono >= LONG_ATTEMPT_S
        return self.first_step is not None or self.trained or long

    @cached_property
    def by_host(self) -> dict[str, Tree]:
        return {tree.host: tree for tree in self.trees}

    @property
    def launched(self) -> bool:
        return all(tree.launched for tree in self.trees)

    @property
    def ended(self) -> bool:
        return all(tree.ended for tree in self.trees)

    @property
    def ended_mono(self) -> float:
        return max(tree.ended_mono for tree in self.trees)

    @property
    def has_to_end(self) -> bool:
        """One machine has failed, or all have ended."""
        return self.ended or any(tree.failed for tree in self.trees)

    @property
    def tree_gone(self) -> bool:
        return all(tree.gone for tree in self.trees)

    @property
    def settled(self) -> bool:
        return all(tree.settled for tree in self.trees)

    @property
    def end(self) -> Tree:
        """The first that has failed; else the last that has ended."""
        failed = [tree for tree in self.trees if tree.failed]
        if failed:
            return min(failed, key=lambda tree: tree.ended_mono)
        return max(self.trees, key=lambda tree: tree.ended_mono)

    @property
    def root(self) -> ProcessId | None:
        return self.end.root

    @property
    def keeper(self) -> ProcessId | None:
        return self.trees[0].keeper

    @property
    def code(self) -> int | None:
        return self.end.code

    @property
    def signal(self) -> int | None:
        return self.end.signal

    @property
    def how_known(self) -> str | None:
        return self.end.how_known

    @property
    def error(self) -> Why | None:
        return self.end.error

    @property
    def cannot_start(self) -> bool:
        """The command itself, and not one of several machines at this moment."""
        if self.how_known != "not-started":
            return False
        lost = self.error is not None and self.error.code == "keeper-ended-early"
        return len(self.trees) == 1 or (self.attempt == 1 and not lost)


class StopAsk(Value):
    """The training was asked to save and end."""

    sequence: int
    wall: float
    """Unix seconds of the request."""
    step: int | None
    expects_save: bool
    answered_mono: float | None = None
    refused: bool = False
    """Its ranks have found no common step for it."""
    saved: str | None = None
    """The whole checkpoint that was finished since."""


class Machine(Value):
    """Another machine of the job, or another task of this one, as its agent has named itself."""

    host: str
    """As in Tree."""
    hostname: str
    place: str
    """Within which a pid means something: host, boot and pid namespace."""
    run_dir: str
    agent: ProcessId


class Crew(Value, dict=True):
    """One task of a job that is led: task 0 decides, the others are its agents."""

    task: JobTask
    machines: tuple[Machine, ...] = ()
    """Of the leader: those that were heard."""
    silent: tuple[tuple[str, float], ...] = ()
    """Those that are not heard at present, and since when (Unix seconds)."""
    ranks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """On which machine they were seen last."""
    epoch: int = 0
    """Of an agent: the newest leader that it obeys."""
    done: int = 0
    """Of an agent: the newest order of that leader."""
    unseen: tuple[tuple[str, Why], ...] = ()
    """Checkpoints that not every machine sees, and which does not."""

    @cached_property
    def by_host(self) -> dict[str, Machine]:
        return {machine.host: machine for machine in self.machines}


class State(Value):
    """Everything that is known about a run from its events alone."""

    state: RunState = "idle"
    run_id: str = ""
    name: str = ""
    run_dir: str = ""
    slot_dir: str | None = None
    cwd: str = ""
    boot_id: str | None = None
    host: str = ""
    argv: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    limits: Limits = Limits()
    launcher: Launcher | None = None
    """What starts the ranks; None: the command does not name it."""
    report_only: bool = False
    max_restarts: int | None = None
    """None: unknown, or the settings never restart."""
    supervisor: ProcessId | None = None
    started_at: float | None = None
    """Unix seconds."""
    updated_at: float | None = None
    mono: float = 0.0
    """Monotonic stamp of the newest event."""

    attempts: tuple[AttemptRecord, ...] = ()
    next_plan: Plan | None = None
    """Made and not launched yet."""
    restarts: int = 0
    """Restarts in all."""
    restarts_since_progress: int = 0
    """Restarts since the last newer step or checkpoint; this is what --max-restarts limits."""
    reopened_after: int = 0
    """Attempts made before the user let the finished run go on: they use up no limit."""
    best_step: int | None = None
    members: tuple[Member, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    """Processes of the present attempt outside its session, as judged last."""
    left: tuple[Daemon, ...] = ()
    """Those that ended attempts have left running."""
    ranks: tuple[PhaseRanks, ...] = ()
    rank_ends: tuple[RankEnd, ...] = ()
    """Ranks of the present attempt that have ended before the others."""
    progress: RunProgress = RunProgress()
    places: tuple[RankPlaces, ...] = ()
    """Milestones as recorded last."""
    places_mono: float = 0.0
    resume_way: Why | None = None
    """How a restart will resume, as far as it is known."""
    resume_options: tuple[str, ...] = ()
    """Arguments by which the script may resume, as an attempt has shown them last."""
    hooks: tuple[HookNotArmed, ...] = ()
    """Hooks that are not armed in the present attempt."""
    progress_mono: float = 0.0
    """When progress was recorded last."""

    suspicion: Basis | None = None
    suspicion_mono: float = 0.0
    silent_since: float = 0.0
    """When the silence began, monotonic seconds."""
    look: Looked | None = None
    """What the last look at the present suspicion said, None before it."""
    native_mono: float = 0.0
    """When native stacks of ranks were last taken in a silence."""
    pauses: tuple[Place, ...] = ()
    """Lines at which it has paused and continued, the newest last."""
    outlived: Why | None = None
    """What was killed after an exit with code 0."""
    noticed: tuple[Noticed, ...] = ()
    """What was said about the present silence or attempt, the newest of each kind."""
    straggler: Straggler | None = None
    """The rank of the present attempt that comes last."""
    warned: tuple[Ahead, ...] = ()
    """What will go wrong if it goes on like this, as far as it is not over."""
    muted: bool = False
    """The present silence has been reported already and is not to be killed for."""
    stalls: tuple[StallRecord, ...] = ()
    torn: tuple[str, ...] = ()
    """Checkpoints passed over at the last restart that are not known to be valid."""
    shared: tuple[CheckpointsShared, ...] = ()
    """Directories that another run writes its checkpoints to, as well."""
    checkpoint_chosen: str | None = None
    kept: tuple[KeptCopy, ...] = ()
    """The newest copy of each file that is overwritten in place."""
    kept_mono: float = 0.0
    keep_failed: bool = False
    """The newest try to keep one."""
    restore_tried: int = 0
    """The attempt after which a kept copy was put back last, or could not be."""
    stop: StopRequested | None = None
    save_requested: int = 0
    save_wall: float = 0.0
    """Unix seconds of the newest save-request."""
    save_answered: int = 0
    save_refused: int = 0
    save_proven: int = 0
    stop_asked: StopAsk | None = None
    can_be_asked_to_save: bool = False
    scan_failures: int = 0
    """Scans of checkpoints that failed since the last attempt."""
    scan_since_mono: float = 0.0
    """When the first of them did."""
    postponed: Postponed | None = None
    backoff_until: float | None = None
    gpu_held: GpuMemoryHeld | None = None
    """Who holds the GPU memory that the next attempt waits for, as said last."""
    gpu_held_mono: float = 0.0
    """When that was said first."""
    commands_begun: int = 0
    """The attempt before which the user's commands were started last."""
    commands_done: int = 0
    """The attempt before which they have ended last."""
    given_up: GivenUp | None = None
    guilty: tuple[GuiltyNode, ...] = ()
    """As the end of the job has named them."""
    crew: Crew | None = None
    """None: one supervisor, one machine."""

    outcome: Outcome | None = None
    exit_code: int | None = None
    warning: Why | None = None
    why: Why | None = None
    """Why it finished, in words."""

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def just_reopened(self) -> bool:
        """The user let a finished run go on, and no attempt was made since."""
        return 0 < self.reopened_after == len(self.attempts)

    @property
    def attempt(self) -> AttemptRecord | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """A number that this run has not used."""
        return (self.attempts[-1].attempt if self.attempts else 0) + 1

    @property
    def task(self) -> JobTask | None:
        """Which task of a job this run is."""
        return self.crew.task if self.crew is not None else None

    @property
    def hosts_here(self) -> frozenset[str]:
        """Machines, as trees name them, that are the supervisor's own: their pids are its own."""
        machines = self.crew.machines if self.crew is not None else ()
        here = f"{self.host}/{self.boot_id}/"
        return frozenset({"", *(one.host for one in machines if one.place.startswith(here))})

    @property
    def trees(self) -> tuple[Tree, ...]:
        """Of the present attempt."""
        return self.attempts[-1].trees if self.attempts else ()

    @property
    def notices(self) -> tuple[str, ...]:
        """Kinds of `noticed`."""
        return tuple(one.kind for one in self.noticed)

    @property
    def is_collecting(self) -> bool:
        """Whether some bundle is not on disk yet."""
        return any(stall.collecting for stall in self.stalls)

    def stall(self, stall_id: str | None) -> StallRecord | None:
        """The stall or crash of that id."""
        return next((stall for stall in self.stalls if stall.id == stall_id), None)

    def tree(self, host: str) -> Tree | None:
        """Of the present attempt, on one machine."""
        return self.attempts[-1].by_host.get(host) if self.attempts else None

    @property
    def kill(self) -> Kill | None:
        """What is under way, on the first machine where something is."""
        return next((tree.kill for tree in self.trees if tree.kill is not None), None)

    @property
    def survivors(self) -> tuple[int, ...]:
        """Who has survived SIGKILL."""
        return tuple(pid for tree in self.trees for pid in tree.survivors)

    @property
    def last_stall(self) -> StallRecord | None:
        """The newest bundle that is a stall or a crash."""
        return next((stall for stall in reversed(self.stalls) if stall.why != "manual"), None)
