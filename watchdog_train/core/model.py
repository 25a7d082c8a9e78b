"""The nouns of the core: frozen values that every room exchanges, without behaviour."""

from typing import Any, Literal

import msgspec

from watchdog_train.core.gpu import GpuUse

Role = Literal["keeper", "launcher", "rank", "worker", "other"]
Phase = Literal[
    "unknown",
    "startup",
    "download",
    "load",
    "compile",
    "first_step",
    "train",
    "eval",
    "checkpoint",
    "idle",
    "finishing",
    "finished",
]
RemedyKind = Literal["execution", "training", "device"]
ResumeVia = Literal["hook", "argv", "env", "script", "none"]
DiagnosisKind = Literal["hang", "crash", "slow", "stopped", "unknown"]
BundleWhy = Literal["stall", "crash", "manual"]
Basis = Literal[
    "quiet",
    "proven",
    "hard-budget",
    "uninterruptible",
    "frozen",
    "user-limit",
    "rank-gone",
    "stopped",
    "finishing",
    "alone",
    "peer",
]
"""Why a silence is suspected or a stall; frozen: the job is busy, but its GPUs only spin; alone: of
a suspicion only, the rest of the job works or is not heard of; peer: another task of the job has
found the reason."""
Outcome = Literal["succeeded", "failed", "stopped", "gave_up"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value here: frozen, compared by content."""


class ProcessId(msgspec.Struct, frozen=True, order=True):
    """A process, safe against pid reuse.

    `start` is opaque and only ever compared for equality: clock ticks since boot on Linux,
    creation time in hundredths of a second since 1970 where only psutil tells.
    """

    pid: int
    start: int


class ProcessRow(Value, frozen=True, kw_only=True):
    """One look at one process. None means that the system would not say."""

    pid: int
    start: int
    ppid: int
    state: str | None
    """R, S, D, T, t, Z, I as in /proc/PID/stat."""
    cpu_s: float | None
    """User and system time of the process itself, seconds."""
    reaped_cpu_s: float | None
    """The same of children it has waited for."""
    io_bytes: int | None
    """Bytes read and written through system calls (not received from sockets)."""
    name: str

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start)


class SlotReading(Value, frozen=True, kw_only=True):
    """The heartbeat slot of one process, decoded; raw words by the names of client.layout."""

    pid: int
    start: int
    """0 when the client could not tell its own start time."""
    role: Literal["unknown", "launcher", "rank", "worker", "other"]
    rank: int | None
    local_rank: int | None
    world_size: int | None
    local_world: int | None = None
    """Ranks that its launcher has started on this machine, where it says so."""
    attempt: int
    progress: tuple[int, ...]
    """The words of layout.PROGRESS_WORDS in that order."""
    step: int | None
    """The framework's step where there is one, else optimizer steps; None before the first."""
    total_steps: int | None
    phase: Phase
    phase_entries: int
    milestone: int
    last_beat_ns: int
    expect_until_ns: int
    pulse: int
    saves_begun: int
    saves_ended: int
    save_answered: int
    stop_answered: int
    dump_answered: int
    settings_taken: int
    exiting: bool
    failed: bool = False
    """Exiting because of an exception; False says nothing about the exit code."""
    fault_handler_signal: int
    hooks_failed: int
    worker: int | None
    can_save: bool
    can_stop: bool
    loss: float | None
    samples_s: float | None
    train_ordinal: int
    resumed_step: int | None
    first_step: int | None = None
    """The framework's step after the first one of the newest training, None before it."""


class Member(Value, frozen=True, kw_only=True):
    """A process recorded as part of this run's tree; membership outlives its parent."""

    pid: int
    start: int
    role: Role
    rank: int | None = None
    local_rank: int | None = None
    worker: int | None = None
    """DataLoader worker id within its rank."""
    ppid: int = 0
    name: str = ""

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start)


class MemberSample(Value, frozen=True, kw_only=True):
    """A member at one poll."""

    member: Member
    state: str | None
    cpu_s: float | None
    io_bytes: int | None
    slot: SlotReading | None
    waits_for_input: bool | None = None
    """Blocked reading a terminal or stdin; None where the system does not tell."""
    handles_sigterm: bool | None = None
    """Of a wrapper: a process without heartbeat above a launcher or rank; None: not looked up."""


class RankEnd(Value, frozen=True, kw_only=True):
    """A rank process that has ended while its attempt went on."""

    pid: int
    start: int
    rank: int
    world_size: int | None
    step: int | None
    """The last one that its slot told."""
    phase: Phase
    at: float
    """Supervisor's monotonic clock, seconds, when it was seen first."""
    code: int | None = None
    signal: int | None = None
    """As the kernel tells it; both None where it does not tell."""
    said: Literal["quiet", "exception"] | None = None
    """What its interpreter said at its end; None: nothing, as after SIGKILL or os._exit."""
    unnoticed: bool = False
    """A zombie: its parent has not asked for its exit status."""


class HostLoad(Value, frozen=True, kw_only=True):
    """The machine at one moment. None means unknown."""

    swap_bytes: int | None = None
    """Moved to and from swap since boot."""
    memory_pressure: float | None = None
    """Per cent of the last minute in which some process waited for it, as for the next two."""
    io_pressure: float | None = None
    cpu_pressure: float | None = None


class Sample(Value, frozen=True, kw_only=True):
    """One poll of the whole tree."""

    at: float
    """Supervisor's monotonic clock, seconds."""
    members: tuple[MemberSample, ...]
    """Live members, zombies included."""
    cpu_s: float | None
    """Whole tree since the attempt began, exited and reaped children included; never shrinks."""
    io_bytes: int | None
    tcp_bytes: int | None
    log_bytes: int
    births: int
    """Members ever seen, so that a difference between polls is a birth."""
    deaths: int
    empty_looks: int = 0
    """Consecutive full looks, token scan included, that found no live member but the keeper."""
    keeper_alive: bool | None = None
    suspended_s: float | None = None
    """Total time the machine has slept since boot."""
    late_s: float = 0.0
    """How much later than planned this poll ran (a suspend, SIGSTOP or swap storm of ours)."""
    ended: tuple[RankEnd, ...] = ()
    """Ranks of this attempt that have ended, oldest first."""
    gpu: GpuUse | None = None
    """What the GPUs of these processes show; None: unknown, or they use none."""
    host: HostLoad | None = None
    """As read within the last seconds."""
    asked: bool = False
    """A look or a collection of ours has read the processes since the poll before: their answers
    cost them CPU time."""


class RankStatus(Value, frozen=True, kw_only=True):
    """A rank as status shows it."""

    rank: int
    local_rank: int | None
    pid: int
    host: str | None
    step: int | None
    phase: Phase
    beat_age_s: float | None
    state: str | None
    workers: tuple[int, ...]


class Milestone(Value, frozen=True, kw_only=True):
    """A named place on the way of one process, as it tells it itself; times are monotonic."""

    name: str
    begin: float
    end: float | None = None
    """None: it is inside."""
    times: int = 1
    """How often it came there; begin and end are of the last time."""
    failed: bool = False
    """An exception left it."""
    mark: bool = False
    """The user's own, by mark()."""


class RankPlaces(Value, frozen=True, kw_only=True):
    """The milestones of one judged process, by their begin."""

    rank: int
    local_rank: int | None
    pid: int
    milestones: tuple[Milestone, ...]


class RunProgress(Value, frozen=True, kw_only=True):
    """What a person wants to read first. None is unknown."""

    step: int | None = None
    total_steps: int | None = None
    percent: float | None = None
    eta_s: float | None = None
    """At the recent pace."""
    steps_s: float | None = None
    """The recent pace, once it is steady."""
    samples_s: float | None = None
    loss: float | None = None


class RemedyUse(Value, frozen=True, kw_only=True):
    """A remedy in a plan, with the reason it is there."""

    id: str
    kind: RemedyKind
    why: str


class CheckpointRef(Value, frozen=True, kw_only=True):
    """The checkpoint a plan resumes from."""

    path: str
    format: str
    step: int | None
    how_checked: str
    ordinal: int | None = None
    """Which call of train() or fit() wrote it, where the save hook recorded that."""
    home: str | None = None
    """As in SaveRecord."""
    nth: int | None = None
    """As in SaveRecord."""
    signature: str | None = None
    """As in SaveRecord."""
    saved_at: float | None = None
    """As in CheckpointFinding."""


class SaveRecord(Value, frozen=True, kw_only=True):
    """A finished save as the hook inside the training noted it: a line of saves.<pid>.jsonl."""

    path: str
    """Absolute: the directory of a checkpoint, or its single file."""
    format: str
    """"hf", "lightning", "torch" or "safetensors"."""
    step: int | None = None
    ordinal: int | None = None
    output_dir: str | None = None
    home: str | None = None
    """By what the hook knows the training again, where that is not output_dir: Lightning writes
    into a new version_N at every start."""
    nth: int | None = None
    """Which training into this home it was in its process: a second stage may share a directory,
    and a script that skips finished folds begins to count its calls anew."""
    signature: str | None = None
    """What was trained; two that differ are two trainings."""
    t: float = 0.0
    """Unix seconds, when the save had ended."""
    files: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Name (relative to the directory) to size in bytes and mtime in nanoseconds."""


class KeptCopy(Value, frozen=True, kw_only=True):
    """A copy, in the run directory, of a checkpoint that is overwritten in place."""

    path: str
    """Of the checkpoint itself."""
    copy: str
    format: str
    step: int | None
    saved_at: float
    """Unix seconds of the file that was copied."""
    seconds: float = 0.0
    """How long the copying took."""


class KeepAnswer(Value, frozen=True, kw_only=True):
    """What a child that was to keep a copy has done."""

    path: str
    copy: str
    format: str
    step: int | None
    saved_at: float
    size_bytes: int = 0
    how: Literal["reflink", "copy"] = "copy"
    seconds: float = 0.0
    problem: str | None = None
    """Why there is none."""


class CheckpointFinding(Value, frozen=True, kw_only=True):
    """One checkpoint that a survey has looked at."""

    path: str
    format: str
    step: int | None
    whole: bool | None
    """None: cannot be told (a legacy pickle, a foreign format)."""
    why: str
    how_checked: str
    ordinal: int | None = None
    home: str | None = None
    nth: int | None = None
    signature: str | None = None
    saved_at: float | None = None
    """Unix seconds, by the newest of its files; tells what an earlier run has left."""


class Survey(Value, frozen=True, kw_only=True):
    """The checkpoints of a run, newest first."""

    findings: tuple[CheckpointFinding, ...]
    directories: tuple[str, ...]
    """Where was looked."""
    problem: str | None = None
    """Why the survey is incomplete, None when it is not."""
    resume_options: tuple[str, ...] = ()
    """Options by which the script itself may be given a checkpoint, the likeliest first."""

    @property
    def newest_whole(self) -> CheckpointFinding | None:
        return next((finding for finding in self.findings if finding.whole), None)


class Plan(Value, frozen=True, kw_only=True):
    """One attempt, reproducible by a person."""

    attempt: int
    why: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """Only what is added to or changed in the user's environment."""
    in_process: tuple[dict[str, Any], ...]
    """Settings for the client, each {"id": ..., parameters}."""
    checkpoint: CheckpointRef | None
    resume_via: ResumeVia
    remedies: tuple[RemedyUse, ...]
    resume_arg: str | None = None
    """The arguments by which argv names the checkpoint, {checkpoint} for its path."""


NO_STACK = "no stack"
"""In the place of a culprit's frame, where there is none."""


class Culprit(Value, frozen=True, kw_only=True):
    """The process that a diagnosis points at."""

    rank: int | None
    role: str
    pid: int | None
    """None: the evidence, somebody's text, does not tell."""
    frame: str
    """`function (file:line)`."""


class RankedFamily(Value, frozen=True, kw_only=True):
    """An alternative of a diagnosis."""

    family: str
    confidence: float


class Diagnosis(Value, frozen=True, kw_only=True):
    """What is stuck and why. family None is "I do not know", a right answer."""

    family: str | None
    kind: DiagnosisKind
    confidence: float
    culprit: Culprit | None
    explanation: str
    evidence: tuple[str, ...]
    ranked: tuple[RankedFamily, ...]
    remedies: tuple[str, ...]


Patience = Literal["proven", "may-end", "input", "healthy", "unknown"]
"""What a look at the stacks says about waiting longer: proven: it can never end; may-end: a wait
for something outside; input: for a person; healthy: it works; unknown: the stacks do not tell."""


class JointAnswer(Value, frozen=True, kw_only=True):
    """What the evidence of all tasks of a job says together."""

    diagnosis: Diagnosis | None
    problem: str | None = None
    """Why there is none."""


class Missing(Value, frozen=True, kw_only=True):
    """Evidence that could not be had."""

    pid: int
    why: str


class CapturedProcess(Value, frozen=True, kw_only=True):
    """A row of a bundle's verdict.json."""

    pid: int
    start: int
    role: str
    rank: int | None
    worker: int | None
    state: str | None
    captured: bool
    why_not: str | None


class EvidenceResult(Value, frozen=True, kw_only=True):
    """What a collector brought back."""

    stall_id: str
    dir: str
    processes: tuple[CapturedProcess, ...]
    diagnosis: Diagnosis | None
    patience: Patience
    fingerprint: str | None
    seconds: float
    problem: str | None = None
    """Why the collection is incomplete as a whole; missing processes are in their rows."""

    @property
    def captured(self) -> int:
        return sum(process.captured for process in self.processes)

    @property
    def missing(self) -> tuple[Missing, ...]:
        return tuple(
            Missing(pid=process.pid, why=process.why_not or "unknown")
            for process in self.processes
            if not process.captured
        )


class ExitStatus(Value, frozen=True, kw_only=True):
    """How the root of an attempt ended: a code, or a signal, or neither when nobody knows."""

    code: int | None
    signal: int | None
    how_known: str
    """"keeper", "keeper-file", "gone" (it vanished and no status was left), "not-started"."""
    error: str | None = None
    """For "not-started": the operating system's words."""

    @property
    def ok(self) -> bool:
        return self.code == 0
