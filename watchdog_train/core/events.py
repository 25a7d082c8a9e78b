"""The event log's vocabulary: one frozen struct per type, encoded as one flat JSON object a line.

State is a fold over these (core.state.evolve). docs/events.md is checked against this module.
An event is a fact that has happened or, for the types marked intent, is about to be tried;
after a supervisor's death every open intent is settled by looking.
"""

import re
from typing import Any, Literal

import msgspec

from watchdog_train.core.gpu import GpuHolder
from watchdog_train.core.jobs import JobTask
from watchdog_train.core.launchers import Launcher
from watchdog_train.core.model import (
    Basis,
    BundleWhy,
    CapturedProcess,
    Diagnosis,
    Member,
    Missing,
    Outcome,
    Patience,
    Phase,
    Plan,
    ProcessId,
    RankPlaces,
    RankStatus,
    RunProgress,
)

SCHEMA_VERSION = 1


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_snake):
    """The envelope. The event log fills seq, t and mono when it appends."""

    v: int = SCHEMA_VERSION
    seq: int = 0
    """Starts at 1, no gaps."""
    t: float = 0.0
    """Wall clock, Unix seconds; for display only."""
    mono: float = 0.0
    """Monotonic clock of the machine, seconds since boot; decides everything."""
    attempt: int = 0
    """0 before the first attempt."""


class RunStarted(Event, frozen=True, kw_only=True):
    run_id: str
    name: str
    boot_id: str | None
    host: str
    pid: int
    start: int
    argv: tuple[str, ...]
    cwd: str
    run_dir: str
    slot_dir: str | None
    wtrain_version: str
    launcher: Launcher | None = None
    """What starts the ranks, where the command tells."""


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    start: int
    run_id: str | None
    command: str
    why: str


class OrphansFound(Event, frozen=True, kw_only=True):
    orphans: tuple[Orphan, ...]


class ProcessKilled(Event, frozen=True, kw_only=True):
    pid: int
    start: int
    signal: int
    why: str


class AttemptLaunching(Event, frozen=True, kw_only=True):
    """Intent."""

    token: str
    plan: Plan


class AttemptLaunched(Event, frozen=True, kw_only=True):
    pid: int
    start: int
    keeper_pid: int
    keeper_start: int


class FirstBeat(Event, frozen=True, kw_only=True):
    rank: int
    pid: int
    after_s: float


class FirstStep(Event, frozen=True, kw_only=True):
    rank: int
    pid: int
    step: int
    after_s: float


class PhaseChanged(Event, frozen=True, kw_only=True):
    rank: int
    phase: Phase
    previous: Phase


class Progress(Event, frozen=True, kw_only=True):
    """Sampled; also a member census, so that an adopting supervisor knows the tree."""

    progress: RunProgress
    ranks: tuple[RankStatus, ...]
    members: tuple[Member, ...]


class Milestones(Event, frozen=True, kw_only=True):
    """Where the ranks are on their way: at the first step, at a stall and at the end."""

    ranks: tuple[RankPlaces, ...]
    """At most 32; times are of the monotonic clock, as `mono`."""


class HookNotArmed(Event, frozen=True, kw_only=True):
    """The client does not watch a library: wrong version, or the hook failed. Weaker signals do."""

    hook: str
    status: Literal["skipped", "failed"]
    pid: int
    why: str


class RankEnded(Event, frozen=True, kw_only=True):
    """A rank process has ended while others of its job live; code and signal null: not known."""

    rank: int
    pid: int
    start: int
    world_size: int | None
    step: int | None
    phase: Phase
    code: int | None
    signal: int | None
    said: Literal["quiet", "exception"] | None
    """What its interpreter said at its end; null: nothing, as after SIGKILL or os._exit."""


class Suspected(Event, frozen=True, kw_only=True):
    basis: Basis
    phase: Phase
    ranks: tuple[int, ...]
    age_s: float
    why: str


class Looked(Event, frozen=True, kw_only=True):
    """The cheap look between suspicion and decision."""

    patience: Patience
    family: str | None
    confidence: float
    why: str


class SuspicionEnded(Event, frozen=True, kw_only=True):
    why: str


class StallDeclared(Event, frozen=True, kw_only=True):
    stall_id: str
    basis: Basis
    phase: Phase
    ranks: tuple[int, ...]
    age_s: float
    why: str


class StallRecovered(Event, frozen=True, kw_only=True):
    stall_id: str
    why: str


NoticeKind = Literal[
    "stopped",
    "input",
    "busy",
    "uninterruptible",
    "suspended",
    "client",
    "keeper",
    "no-heartbeat",
    "save",
    "save-late",
    "not-whole",
    "joint",
    "peers",
    "gpu",
    "no-progress",
]


class Noticed(Event, frozen=True, kw_only=True):
    """Something a person should know that is no stall: stopped, waiting for input, busy, a save
    that a stop waits for, that nobody makes, or that is not whole.
    """

    kind: NoticeKind
    pids: tuple[int, ...]
    why: str


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
    changed: tuple[str, ...]
    """What is different from before, in words; empty: nothing that we can see."""
    why: str


class SlowdownEnded(Event, frozen=True, kw_only=True):
    """Steps take less than twice as long as before again."""

    seconds: float
    """From its beginning."""
    why: str


class EvidenceCollecting(Event, frozen=True, kw_only=True):
    """Intent."""

    stall_id: str
    why: BundleWhy
    dir: str


class EvidenceCollected(Event, frozen=True, kw_only=True):
    stall_id: str
    why: BundleWhy
    dir: str
    captured: int
    missing: tuple[Missing, ...]
    processes: tuple[CapturedProcess, ...]
    seconds: float
    fingerprint: str | None
    problem: str | None


class Diagnosed(Event, frozen=True, kw_only=True):
    stall_id: str
    diagnosis: Diagnosis
    tasks: tuple[int, ...] = ()
    """Of a job, whose evidence it rests on together; empty: this run's alone."""


class StopRequested(Event, frozen=True, kw_only=True):
    by: str
    mode: Literal["soft", "now"]
    exit_code: int
    """77 for stop and SIGTERM, 130 for Ctrl-C."""


class SaveRequested(Event, frozen=True, kw_only=True):
    by: str
    sequence: int
    can_be_asked: bool


class SaveProven(Event, frozen=True, kw_only=True):
    """A checkpoint that was finished after the request has been found whole."""

    sequence: int
    path: str
    step: int | None
    request: Literal["save", "stop"] = "save"


class StopAsked(Event, frozen=True, kw_only=True):
    """The control page's stop-request was raised."""

    sequence: int
    can_be_asked: bool
    why: str
    step: int | None = None
    """The newest step at that moment."""
    expects_save: bool = False
    """It saves before it ends."""


class RequestAnswered(Event, frozen=True, kw_only=True):
    """A rank has taken a request from the control page, at the end of a step."""

    request: Literal["save", "stop"]
    sequence: int
    step: int | None


KillStage = Literal["ask", "root", "freeze", "terminate", "kill", "helpers", "launchers", "keeper"]


KillSequence = Literal["hang", "stop", "now", "sweep"]


class Signalling(Event, frozen=True, kw_only=True):
    """Intent: one stage of a kill sequence begins."""

    sequence: KillSequence
    stage: KillStage
    targets: tuple[ProcessId, ...]
    signal: int
    why: str


class Signalled(Event, frozen=True, kw_only=True):
    pid: int
    start: int
    signal: int
    role: str
    result: Literal["sent", "gone", "denied", "not-ours"]


class SurvivedKill(Event, frozen=True, kw_only=True):
    pids: tuple[int, ...]
    why: str


class TreeGone(Event, frozen=True, kw_only=True):
    shared_memory_removed: tuple[str, ...] = ()


class AttemptExited(Event, frozen=True, kw_only=True):
    code: int | None
    signal: int | None
    how_known: str
    step: int | None
    error: str | None = None


class CheckpointChosen(Event, frozen=True, kw_only=True):
    path: str
    format: str
    step: int | None
    how_checked: str
    why: str


class CheckpointsShared(Event, frozen=True, kw_only=True):
    """Another run of this user writes to the same directory: nothing there is resumed from."""

    directory: str
    run_id: str
    """Of the other run; empty: not known."""
    pid: int
    why: str


class CheckpointRejected(Event, frozen=True, kw_only=True):
    path: str
    format: str
    why: str


class CheckpointKept(Event, frozen=True, kw_only=True):
    """A file that the script overwrites in place was copied after a save of it had ended."""

    path: str
    copy: str
    format: str
    step: int | None
    saved_at: float
    """Unix seconds of the file that was copied."""
    size_bytes: int
    how: Literal["reflink", "copy"]
    seconds: float


class CheckpointNotKept(Event, frozen=True, kw_only=True):
    path: str
    why: str


class PlanMade(Event, frozen=True, kw_only=True):
    plan: Plan


class WouldHaveKilled(Event, frozen=True, kw_only=True):
    """Report-only: what would have happened now."""

    stall_id: str
    why: str


class GivenUp(Event, frozen=True, kw_only=True):
    """No further attempt: the ladder or the budget is at its end."""

    why: str
    exit_code: int
    outcome: Outcome


class BackingOff(Event, frozen=True, kw_only=True):
    delay_s: float
    until_mono: float
    why: str


class GpuMemoryHeld(Event, frozen=True, kw_only=True):
    """The next attempt waits: memory of its GPUs is held. Said again when it is by others."""

    ours: tuple[GpuHolder, ...]
    """Processes of the last attempt that the driver has not let go of."""
    others: tuple[GpuHolder, ...]
    unnamed: tuple[int, ...]
    """Devices in use, and the driver does not tell by whom."""
    why: str


class GpuMemoryFree(Event, frozen=True, kw_only=True):
    """What the next attempt waited for is over."""

    waited_s: float


class RemedyTaken(Event, frozen=True, kw_only=True):
    """What the training process itself reported about a setting."""

    remedy: str
    pid: int
    took: bool
    why: str


class ResumeVerified(Event, frozen=True, kw_only=True):
    expected_step: int | None
    first_step: int | None
    ok: bool
    why: str


class Adopted(Event, frozen=True, kw_only=True):
    pid: int
    start: int
    boot_id: str | None
    previous_pid: int
    why: str


class Reopened(Event, frozen=True, kw_only=True):
    """A finished run goes on at the user's wish, with a fresh restart budget."""

    pid: int
    start: int
    boot_id: str | None
    slot_dir: str | None
    with_remedies: tuple[str, ...]
    allow: tuple[str, ...]
    why: str


class SupervisorLeft(Event, frozen=True, kw_only=True):
    """The supervisor ended on purpose with training alive (a bug of ours, or asked to)."""

    why: str


class LogBehind(Event, frozen=True, kw_only=True):
    behind_s: float
    spill: str | None
    why: str


class Notified(Event, frozen=True, kw_only=True):
    """A message to a person was sent on one channel, or could not be."""

    channel: str
    """Its scheme and number, as `https #1`: the rest of a URL can be a secret."""
    topics: tuple[str, ...]
    sent: bool
    why: str | None
    """Why it was not sent."""


class TaskJoined(Event, frozen=True, kw_only=True):
    """This run is one of several tasks of a job on this machine."""

    task: JobTask


class TasksCoupled(Event, frozen=True, kw_only=True):
    """Whether the tasks of the job train one world: then they act together from now on."""

    together: bool
    world: int | None
    why: str


class PeerAnnounced(Event, frozen=True, kw_only=True):
    """A peer has found why the attempt has to end; this task follows it."""

    task: int
    kind: Literal["stall", "crash", "left"]
    """left: its supervisor has ended without success."""
    firm: bool
    over: bool
    """Its training was finished already."""
    why: str
    code: int | None = None
    signal: int | None = None


class PeerRetracted(Event, frozen=True, kw_only=True):
    """What a peer had announced is over: nothing has to be done for it."""

    task: int
    why: str


class BarrierReached(Event, frozen=True, kw_only=True):
    """The evidence of all tasks is on disk: the killing may begin."""

    tasks: tuple[int, ...]
    waited_s: float


class BarrierMissed(Event, frozen=True, kw_only=True):
    """Not all tasks have their evidence in time: the killing begins all the same."""

    missing: tuple[int, ...]
    waited_s: float
    why: str


class PlanReceived(Event, frozen=True, kw_only=True):
    """The plan of the next attempt, as another task has made it; plan_made follows."""

    proposer: int
    plan_attempt: int
    digest: str


class PeerLost(Event, frozen=True, kw_only=True):
    """Intent: a peer's supervisor is gone, another one takes up its run."""

    task: int
    pid: int
    run_id: str
    why: str


class RunFinished(Event, frozen=True, kw_only=True):
    outcome: Outcome
    exit_code: int
    warning: str | None
    why: str


JobEvent = (
    TaskJoined
    | TasksCoupled
    | PeerAnnounced
    | PeerRetracted
    | BarrierReached
    | BarrierMissed
    | PlanReceived
    | PeerLost
)
"""Only in a run that is one of several tasks of a job."""

AnyEvent = (
    RunStarted
    | OrphansFound
    | ProcessKilled
    | AttemptLaunching
    | AttemptLaunched
    | FirstBeat
    | FirstStep
    | PhaseChanged
    | Progress
    | Milestones
    | HookNotArmed
    | RankEnded
    | Suspected
    | Looked
    | SuspicionEnded
    | StallDeclared
    | StallRecovered
    | Noticed
    | Slowdown
    | SlowdownEnded
    | EvidenceCollecting
    | EvidenceCollected
    | Diagnosed
    | StopRequested
    | SaveRequested
    | SaveProven
    | StopAsked
    | RequestAnswered
    | Signalling
    | Signalled
    | SurvivedKill
    | TreeGone
    | AttemptExited
    | CheckpointChosen
    | CheckpointRejected
    | CheckpointsShared
    | CheckpointKept
    | CheckpointNotKept
    | PlanMade
    | WouldHaveKilled
    | GivenUp
    | BackingOff
    | GpuMemoryHeld
    | GpuMemoryFree
    | RemedyTaken
    | ResumeVerified
    | Adopted
    | Reopened
    | SupervisorLeft
    | LogBehind
    | Notified
    | JobEvent
    | RunFinished
)

LIFECYCLE = (
    RunStarted,
    AttemptLaunching,
    AttemptLaunched,
    StallDeclared,
    EvidenceCollected,
    Signalling,
    TreeGone,
    AttemptExited,
    PlanMade,
    Adopted,
    Reopened,
    RunFinished,
)
"""Types that are on disk (fsync) before the loop goes on."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """One line without its newline."""
    return _encoder.encode(event)


def decode(line: bytes) -> AnyEvent:
    """The event of one line.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: not an event of this schema.
    """
    event: AnyEvent = _decoder.decode(line)
    return event


def to_builtins(event: Event) -> dict[str, Any]:
    """The event as plain dicts and lists, as a JSON reader would see it."""
    result: dict[str, Any] = msgspec.to_builtins(event)
    return result
