"""Processes as they are seen: identity, resource use, and their own reports."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, TypeVar

import msgspec

from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.model.waits import Stopped
from watchdog_train.core.model.words import Phase, Role, Value, host_of

BEFORE_ANY_PHASE: tuple[Phase, ...] = ("unknown", "idle", "finishing", "finished")
"""A process that is no rank is judged once it is in another phase, or has progressed."""


class ProcessId(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A process, safe against pid reuse.

    `start` is opaque and only compared for equality: clock ticks since boot on Linux, creation
    time in hundredths of a second since 1970 if it comes from psutil.
    """

    pid: int
    start: int
    host: str = ""
    """Its machine; empty: that of the holder of this value."""


class ProcessRow(Value):
    """One reading of one process. None: the system gives no value."""

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
    session: int | None = None
    terminal: str = ""
    """The controlling one; empty for none, or if the system does not show it."""

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start)


class SlotReading(Value):
    """The heartbeat slot of one process, decoded; raw words by the names of client.layout."""

    pid: int
    start: int
    """0 if the client did not know its own start time."""
    role: Literal["unknown", "launcher", "rank", "worker", "other"]
    rank: int | None
    local_rank: int | None
    world_size: int | None
    local_world: int | None = None
    """Ranks started on this machine by its launcher, if known."""
    attempt: int
    progress: tuple[int, ...] = (0,) * 8
    """The words of layout.PROGRESS_WORDS in that order."""
    step: int | None = None
    """The framework's step where there is one, else optimizer steps; None before the first."""
    total_steps: int | None = None
    phase: Phase = "unknown"
    phase_entries: int = 0
    milestone: int = 0
    last_beat_ns: int = 0
    batch_ns: int = 0
    """When it had its newest batch, by the monotonic clock; 0: never, as for the next two."""
    backward_ns: int = 0
    backward_end_ns: int = 0
    expect_until_ns: int = 0
    saves_begun: int = 0
    saves_ended: int = 0
    save_answered: int = 0
    stop_answered: int = 0
    save_refused: int = 0
    """The newest request for which the ranks of several supervisors found no common step."""
    stop_refused: int = 0
    dump_answered: int = 0
    fault_handler_signal: int = 0
    settings_taken: int = 0
    exiting: bool = False
    failed: bool = False
    """Exiting because of an exception; False says nothing about the exit code."""
    worker: int | None = None
    can_save: bool = False
    can_stop: bool = False
    loss: float | None = None
    samples_s: float | None = None
    train_ordinal: int = 0
    resumed_step: int | None = None
    first_step: int | None = None
    """The framework's step after the first one of the newest training, None before it."""
    own_began: int | None = None
    """The step after the first one of this process, by the training's own count."""
    load_begun: bool = False
    """It has begun to load the plan's checkpoint."""
    asks_for_path: bool = False
    """It has called resume_path()."""
    continued: int = 0
    """1: at its first save its own count was above the checkpoint's."""
    began_anew: int | None = None
    """A step that shows that it did not resume from the plan's checkpoint."""

    @property
    def trains(self) -> bool:
        """Whether it has made a step, or a beat that reports one."""
        return self.step is not None or self.progress[0] > 0


class Member(Value, array_like=True):
    """A process recorded as part of this run's tree; membership outlives its parent.

    JSON has it as a list, in this order: workers come and go by the hundred.
    """

    pid: int
    start: int
    role: Role
    rank: int | None = None
    local_rank: int | None = None
    worker: int | None = None
    ppid: int = 0
    name: str = ""
    host: str = ""
    """Empty: this machine."""

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start, self.host)


class MemberSample(Value):
    member: Member
    state: str | None
    cpu_s: float | None = None
    slot: SlotReading | None = None
    gpu: GpuUse | None = None
    """Of a rank: its own devices. None: unknown, or it uses none."""
    waits_for_input: bool | None = None
    """Blocked reading a terminal or stdin; None: unknown."""
    held: Stopped | None = None
    """What stops it, if its state is T or t: frozen processes are in state T, too."""
    handles_sigterm: bool | None = None
    """Of a wrapper: a process without heartbeat above a launcher or rank; None: not looked up."""


Ground = Literal[
    "pipe", "socket", "memory", "terminal", "gpu", "port", "file", "output", "fork", "take",
    "own-terminal", "clients", "leave", "none",
]  # fmt: skip
"""The first ten say that it belongs to the training, the others that it is left."""


class Hold(Value):
    ground: Ground
    what: str = ""
    """A path, a port, a pid, a pattern."""
    member: ProcessId | None = None
    """The process with the other end, or the same thing: after its exit the tie is invisible."""


class DaemonFacts(Value):
    process: ProcessId
    command: str
    session: int
    parent_session: int | None = None
    leave: str | None = None
    """The pattern of `stopping.leave` that matches its command line."""
    take: str | None = None
    own_terminal: bool = False
    client: str | None = None
    """Where a process outside the training is connected to it."""
    holds: tuple[Hold, ...] = ()


class Daemon(Value):
    """The judgement: killed with its attempt, or left."""

    process: ProcessId
    command: str
    hold: Hold

    @property
    def is_left(self) -> bool:
        return self.hold.ground in ("own-terminal", "clients", "leave", "none")


class RankEnd(Value):
    """A rank process that has ended while its attempt continued."""

    pid: int
    start: int
    rank: int
    world_size: int | None
    step: int | None
    """The last one in its slot."""
    total_steps: int | None = None
    phase: Phase
    at: float
    """Supervisor's monotonic clock, seconds, when it was seen first."""
    code: int | None = None
    signal: int | None = None
    """From the kernel; both are None if it gives no value."""
    said: Literal["quiet", "exception"] | None = None
    """What its interpreter reported at its end; None: nothing, as after SIGKILL or os._exit."""
    unnoticed: bool = False
    """A zombie: its parent has not asked for its exit status."""
    beat_ns: int = 0
    """Its newest beat or step by the monotonic clock; 0: not known."""
    helper: Member | None = None
    """The process, if it was no rank."""
    script: str = ""
    """The script or module that it ran as `python`; empty: another program."""

    where: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="host")

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start, host_of(self.where))


class Outliving(Value):
    """A process that lives on after the training's first one has exited with code 0."""

    pid: int
    command: str
    cpu_share: float | None = None
    """Of one core, since the poll before."""
    io_bytes_s: float | None = None
    files: tuple[str, ...] = ()
    """Open for writing."""


class ThreadWait(Value):
    """How long a thread has waited for a CPU, as the scheduler counts it."""

    waited_s: float
    """Ready to run, on no CPU; counted when its turn comes."""
    turns: int
    """How often it was put on a CPU."""


class Sample(Value, dict=True):
    """One poll of the tree of one machine, or of all trees together."""

    machine: str = ""
    at: float
    """Supervisor's monotonic clock, seconds."""
    members: tuple[MemberSample, ...]
    """Live members, zombies included."""
    cpu_s: float | None = None
    """Of all processes since the attempt began, reaped children included; never shrinks."""
    io_bytes: int | None = None
    tcp_bytes: int | None = None
    log_bytes: int = 0
    births: int = 0
    """Members ever seen, so that a difference between polls is a birth."""
    deaths: int = 0
    empty_looks: int = 0
    """Consecutive full polls, token scan included, without a live member but the keeper."""
    keeper_alive: bool | None = None
    daemons: tuple[Daemon, ...] = ()
    """Members that have left the training's session and are judged."""
    outliving: tuple[Outliving, ...] = ()
    """After an exit with code 0: processes that live on."""
    suspended_s: float | None = None
    """Total time the machine has slept since boot."""
    late_s: float = 0.0
    """How late this poll ran (a suspend, SIGSTOP or swap storm of the supervisor)."""
    ended: tuple[RankEnd, ...] = ()
    """Ranks of this attempt that have ended, oldest first."""
    vanished: tuple[RankEnd, ...] = ()
    """Their workers and other helpers that failed recently."""
    gpu: GpuUse | None = None
    """What the GPUs of these processes show; None: unknown, or they use none."""
    cpu_wait_s: float | None = None
    """Complete tree: its time in line for a CPU, see core.detection.cpu_wait. None: unknown, or not
    asked because the tree does not look quiet."""
    asked: bool = False
    """A stack sample or collection has read the processes since the poll before: the answers cost
    CPU time."""
    held_back: bool = False
    """Output is not read because its reader is behind: writers wait, too."""

    @cached_property
    def judged(self) -> tuple[tuple[MemberSample, SlotReading], ...]:
        """Ranks, and other processes that train: a task of a service, a child of a daemon.

        They do once they have taken a step or a batch, or are in a phase of a training. Launchers
        and DataLoader workers are evidence, never suspects: an agent beats once when it imports
        torch and never again, which made every torchrun job a false alarm.
        """
        found = []
        for member in self.members:
            slot = member.slot
            if slot is None or member.state in ("Z", "X"):
                continue
            role = member.member.role
            if role == "rank" or (
                role == "other"
                and (
                    any(slot.progress)
                    or (slot.phase_entries and slot.phase not in BEFORE_ANY_PHASE)
                )
            ):
                found.append((member, slot))
        return tuple(found)


def workers_by_rank(members: Iterable[Member]) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for member in members:
        if member.role == "worker":
            found.setdefault(member.rank, []).append(member.pid)
    return found


def together(samples: Sequence[Sample], *, at: float, host: str = "") -> Sample:
    """One sample of several machines; a value unknown on one of them is unknown for all."""
    if len(samples) == 1:
        return samples[0]
    return Sample(
        machine=host,
        at=at,
        members=tuple(member for sample in samples for member in sample.members),
        cpu_s=_sum(sample.cpu_s for sample in samples),
        io_bytes=_sum(sample.io_bytes for sample in samples),
        tcp_bytes=_sum(sample.tcp_bytes for sample in samples),
        log_bytes=sum(sample.log_bytes for sample in samples),
        births=sum(sample.births for sample in samples),
        deaths=sum(sample.deaths for sample in samples),
        daemons=tuple(daemon for sample in samples for daemon in sample.daemons),
        outliving=tuple(one for sample in samples for one in sample.outliving),
        suspended_s=samples[0].suspended_s if samples else None,
        late_s=max((sample.late_s for sample in samples), default=0.0),
        ended=tuple(
            sorted((end for sample in samples for end in sample.ended), key=lambda end: end.at)
        ),
        cpu_wait_s=_sum(sample.cpu_wait_s for sample in samples),
        asked=any(sample.asked for sample in samples),
        held_back=any(sample.held_back for sample in samples),
    )


Number = TypeVar("Number", int, float)


def _sum(numbers: Iterable[Number | None]) -> Number | None:
    total: Number | None = None
    for number in numbers:
        if number is None:
            return None
        total = number if total is None else total + number
    return total


class ExitStatus(Value):
    """How the root of an attempt ended: a code, or a signal, or neither if that is unknown."""

    code: int | None
    signal: int | None
    how_known: str
    """"keeper-file", or "keeper": its report, no file; after the keeper's death "parent" (this
    supervisor had become its parent) or "kernel" (readable by others than its parent); "slot":
    only whether an exception ended the script; "gone": unknown; "not-started"."""
    error: str | None = None
    """For "not-started": the operating system's words."""
    behind: RankEnd | None = None
    """The root itself exited with 0; code and signal are of this process, which failed behind
    it."""

    @property
    def ok(self) -> bool:
        return self.code == 0
