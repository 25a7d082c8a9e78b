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
"""Kinds of `noticed` that outlast their silence."""


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
    """Of a stall: from the last stack sample before it."""
    roots: tuple[str, ...] = ()
    """Machines where the last sample found a process that waits for no other rank."""
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
    """The explanation uses the evidence of all tasks of the job."""
    culprit_host: str | None = None
    recovered: bool = False
    reported_only: bool = False
    """Nothing was killed for it, by the user's choice."""

    @property
    def because(self) -> Because | None:
        return self.explanation.because if self.explanation is not None else None

    @property
    def family(self) -> str | None:
        return self.because.family if self.because is not None else None


class Postponed(Value):
    """A planned attempt that could not be started yet."""

    since: float
    """Monotonic seconds of the first try."""
    why: Why
    tries: int = 1


class Kill(Value):
    sequence: KillSequence
    why: Why
    stage: KillStage | None = None
    stage_mono: float = 0.0
    targets: tuple[ProcessId, ...] = ()
    """Processes signalled in this stage."""
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
    """The newest bundle with evidence of this machine."""
    kill: Kill | None = None
    survivors: tuple[int, ...] = ()
    lost: bool = False
    """Its machine does not report any more: its state is unknown."""
    gone_at: float | None = None
    """Unix seconds at which its last process was gone."""

    @property
    def gone(self) -> bool:
        return self.gone_at is not None

    @property
    def settled(self) -> bool:
        return self.gone or self.lost or bool(self.survivors)

    @property
    def failed(self) -> bool:
        return self.ended and self.code != 0


LONG_ATTEMPT_S = 900.0
"""A start that hangs is declared a stall before: 150 s without steps, 15 minutes for a poll."""


class AttemptRecord(Value, dict=True):
    attempt: int
    plan: Plan
    token: str
    launching_mono: float
    trees: tuple[Tree, ...] = (Tree(),)
    first_beat_s: float | None = None
    first_step_s: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    trained: bool = False
    """A rank was in training, evaluation or a save, whether or not its steps are counted."""
    load_begun: bool = False
    """It had begun to load its plan's checkpoint."""
    saves: int = 0
    """Finished saves at its end."""
    trainings: int = 0
    """Calls of train() or fit() in one process, at most."""
    stall_id: str | None = None
    """The stall for which it is or was killed; None: no stall, or one without a kill."""
    crash_id: str | None = None
    crash: CrashFact | None = None
    """What ended it, or the rank that the others waited for; None: unknown."""
    reported: tuple[str, ...] = ()
    """Remedies of which a training process reported whether they took effect."""
    taken: tuple[str, ...] = ()
    """Those of them that a training process reported as in effect."""
    fastest_steps_s: float | None = None
    """The best recorded pace, steps per second."""
    resume: ResumeVerdict | None = None

    @property
    def began(self) -> bool:
        """It reached its training, by steps, phases and duration."""
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
        return self.ended or any(tree.failed for tree in self.trees)

    @property
    def tree_gone(self) -> bool:
        return all(tree.gone for tree in self.trees)

    @property
    def settled(self) -> bool:
        return all(tree.settled for tree in self.trees)

    @property
    def end(self) -> Tree:
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
        """The command itself cannot be started, not only one of several machines at this moment."""
        if self.how_known != "not-started":
            return False
        lost = self.error is not None and self.error.code == "keeper-ended-early"
        return len(self.trees) == 1 or (self.attempt == 1 and not lost)


class StopAsk(Value):
    """The training was asked to save and exit."""

    sequence: int
    wall: float
    """Unix seconds of the request."""
    step: int | None
    expects_save: bool
    answered_mono: float | None = None
    refused: bool = False
    """Its ranks found no common step for it."""
    saved: str | None = None
    """The valid checkpoint finished since."""


class Machine(Value):
    """Another machine or task of the job, as its agent reported it."""

    host: str
    hostname: str
    place: str
    """Within which a pid means something: host, boot and pid namespace."""
    run_dir: str
    agent: ProcessId


class Crew(Value, dict=True):
    """One task of a job: task 0 leads, the others are its agents."""

    task: JobTask
    machines: tuple[Machine, ...] = ()
    """Of the leader: those that have reported."""
    silent: tuple[tuple[str, float], ...] = ()
    """Machines that do not report now, and since when (Unix seconds)."""
    ranks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The ranks last seen on each machine."""
    epoch: int = 0
    """Of an agent: the newest leader that it obeys."""
    done: int = 0
    """Of an agent: the newest order of that leader."""
    unseen: tuple[tuple[str, Why], ...] = ()
    """Checkpoints that some machine does not see, and which machine."""

    @cached_property
    def by_host(self) -> dict[str, Machine]:
        return {machine.host: machine for machine in self.machines}


class State(Value):
    """Everything known about a run from its events alone."""

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
    restarts_since_progress: int = 0
    """Restarts since the last newer step or checkpoint; this is what --max-restarts limits."""
    reopened_after: int = 0
    """Attempts before the user continued the finished run: they count toward no limit."""
    best_step: int | None = None
    members: tuple[Member, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    """Processes of the present attempt outside its session, as judged last."""
    left: tuple[Daemon, ...] = ()
    """Processes left running by ended attempts."""
    ranks: tuple[PhaseRanks, ...] = ()
    rank_ends: tuple[RankEnd, ...] = ()
    """Ranks of the present attempt that ended before the others."""
    progress: RunProgress = RunProgress()
    places: tuple[RankPlaces, ...] = ()
    places_mono: float = 0.0
    resume_way: Why | None = None
    """How a restart will resume, if known."""
    resume_options: tuple[str, ...] = ()
    """Arguments by which the script may resume, as an attempt has shown them last."""
    hooks: tuple[HookNotArmed, ...] = ()
    progress_mono: float = 0.0

    suspicion: Basis | None = None
    suspicion_mono: float = 0.0
    silent_since: float = 0.0
    """When the silence began, monotonic seconds."""
    look: Looked | None = None
    """The last stack sample of the present suspicion."""
    native_mono: float = 0.0
    """When native stacks of ranks were last taken in a silence."""
    pauses: tuple[Place, ...] = ()
    """Lines at which it has paused and continued, the newest last."""
    outlived: Why | None = None
    """What was killed after an exit with code 0."""
    noticed: tuple[Noticed, ...] = ()
    """Notices of the present silence or attempt, the newest of each kind."""
    straggler: Straggler | None = None
    """The rank of the present attempt that is last."""
    warned: tuple[Ahead, ...] = ()
    """Predicted failures that are not over."""
    muted: bool = False
    """The present silence was reported already; nothing is killed for it."""
    stalls: tuple[StallRecord, ...] = ()
    torn: tuple[str, ...] = ()
    """Checkpoints passed over at the last restart that are not known to be valid."""
    shared: tuple[CheckpointsShared, ...] = ()
    """Directories to which another run writes checkpoints too."""
    checkpoint_chosen: str | None = None
    kept: tuple[KeptCopy, ...] = ()
    """The newest copy of each file that is overwritten in place."""
    kept_mono: float = 0.0
    keep_failed: bool = False
    """The newest attempt to keep one failed."""
    restore_tried: int = 0
    """The attempt after which putting a kept copy back was last tried."""
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
    """When the first of them failed."""
    postponed: Postponed | None = None
    backoff_until: float | None = None
    gpu_held: GpuMemoryHeld | None = None
    """Who holds the GPU memory that the next attempt waits for, as last reported."""
    gpu_held_mono: float = 0.0
    """When that was first reported; the wait for GPU memory counts from here."""
    commands_begun: int = 0
    """The attempt before which the user's commands were last started."""
    commands_done: int = 0
    """The attempt before which they last ended."""
    given_up: GivenUp | None = None
    guilty: tuple[GuiltyNode, ...] = ()
    crew: Crew | None = None
    """None: one supervisor, one machine."""

    outcome: Outcome | None = None
    exit_code: int | None = None
    warning: Why | None = None
    why: Why | None = None

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def just_reopened(self) -> bool:
        """The user continued a finished run, without an attempt since."""
        return 0 < self.reopened_after == len(self.attempts)

    @property
    def attempt(self) -> AttemptRecord | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        return (self.attempts[-1].attempt if self.attempts else 0) + 1

    @property
    def task(self) -> JobTask | None:
        return self.crew.task if self.crew is not None else None

    @property
    def hosts_here(self) -> frozenset[str]:
        """The supervisor's own machines, as trees name them: their pids are its own."""
        machines = self.crew.machines if self.crew is not None else ()
        here = f"{self.host}/{self.boot_id}/"
        return frozenset({"", *(one.host for one in machines if one.place.startswith(here))})

    @property
    def trees(self) -> tuple[Tree, ...]:
        return self.attempts[-1].trees if self.attempts else ()

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(one.kind for one in self.noticed)

    @property
    def is_collecting(self) -> bool:
        """Whether some bundle is not on disk yet."""
        return any(stall.collecting for stall in self.stalls)

    def stall(self, stall_id: str | None) -> StallRecord | None:
        return next((stall for stall in self.stalls if stall.id == stall_id), None)

    def tree(self, host: str) -> Tree | None:
        """Of the present attempt, on one machine."""
        return self.attempts[-1].by_host.get(host) if self.attempts else None

    @property
    def kill(self) -> Kill | None:
        """The kill under way, on the first machine that has one."""
        return next((tree.kill for tree in self.trees if tree.kill is not None), None)

    @property
    def survivors(self) -> tuple[int, ...]:
        """Processes that survived SIGKILL."""
        return tuple(pid for tree in self.trees for pid in tree.survivors)

    @property
    def last_stall(self) -> StallRecord | None:
        """The newest bundle that is a stall or a crash."""
        return next((stall for stall in reversed(self.stalls) if stall.why != "manual"), None)
