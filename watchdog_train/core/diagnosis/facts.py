"""What collectors found out, as frozen values; a diagnosis sees nothing else. None is "unknown"."""

from __future__ import annotations

from typing import Literal

import msgspec

from watchdog_train.core.diagnosis.stacks import ThreadStack, is_forked
from watchdog_train.core.model import (
    BundleWhy,
    CapturedProcess,
    CrashFact,
    ExceptionFact,
    ExitStatus,
    Milestone,
    Patience,
    Phase,
    RankEnd,
    Role,
    Sender,
    Straggler,
    Value,
)
from watchdog_train.core.model.explanation import Place, Who
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.model.waits import FileLockWait, ThreadFact, Wait

FLAT_CPU_SHARE = 0.02
"""Hung trees measured at most 1.3 % of a core, healthy compute at least 26 %."""
BUSY_CPU_SHARE = 0.2
FULL_SHM_SHARE = 0.97
"""Of /dev/shm: hardly a batch fits in the rest."""

How = Literal[
    "py-spy", "py-spy native", "fault handler", "control page", "text", "traceback", "exit"
]


class EndFact(Value):
    end: RankEnd
    at_unix: float
    """Unix seconds when it was seen to be gone; comparable within one host."""
    sender: Sender | None = None
    """Who sent the signal that ended it; None: no signal did."""


class ProcessEvidence(Value):
    pid: int
    start: int
    ppid: int
    role: Role
    rank: int | None = None
    worker: int | None = None
    name: str = ""
    command: tuple[str, ...] = ()
    """Secrets removed."""
    state: str | None = None
    wchan: str | None = None
    kernel: tuple[str, ...] = ()
    """Its stack in the kernel, innermost first, where it could be read."""
    kernel_stack: str | None = None
    """The same as the kernel tells it."""
    notes: tuple[str, ...] = ()
    """What the collector had to do about it, for the reader of evidence.json."""
    deciding_tid: int | None = None
    """The thread that told of progress last, where it says so and still lives; else it is the main
    thread that decides."""
    thread_waits: dict[int, ThreadFact] = msgspec.field(default_factory=dict)
    """Every thread by its number, which a stack has as `os_id`; read before any tool came."""
    wait: Wait | None = None
    handles_signals: tuple[int, ...] | None = None
    """Signals that somebody may send it to let it continue: it has handlers for them. Left out are
    SIGINT and SIGTERM, which ask to end, SIGCHLD, our SIGURG, and faults of the process itself."""
    own_signals: tuple[str, ...] = ()
    """SIGUSR1 and SIGUSR2, where code of the script itself handles them, not a framework's."""
    sealed: bool | None = None
    """True: every thread waits, without a time limit, for a lock that only a thread of this same
    process can release, and none ran between two looks: no one is left to wake it, ever."""
    cpu_share: float | None = None
    """Of one core, between two looks."""
    gpu: GpuUse | None = None
    """What its own GPU showed last."""
    os_threads: int | None = None
    waits_for_input: bool | None = None
    lock: FileLockWait | None = None
    """The lock that a library asks for again and again, with its holders by the kernel's list."""
    polls: tuple[str, str] | None = None
    """Name and value of a variable that holds a path, of the function that sleeps."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Only the variables that a rule may ask for."""
    threads: tuple[ThreadStack, ...] = ()
    how: How | None = None
    """Which tool gave the stacks; None: there are none."""
    why_not: str | None = None
    milestones: tuple[Milestone, ...] = ()
    """Where it says that it is on its way, in its own words."""
    milestones_at: float | None = None
    """The monotonic clock when they were read."""
    changed: bool | None = None
    """Whether a second look at the stacks differed; True proves life, False proves nothing."""
    asks: Place | None = None
    """The loop in which it only asks if something has happened, while no thread of it works."""
    ended: EndFact | None = None
    exception: ExceptionFact | None = None
    """The last one that it raised and did not catch, of a thread of its where none has ended it."""
    died: ExceptionFact | None = None
    """The same, where it ended a thread of this process since its last progress."""
    part: int = 0
    """Of which piece of evidence: two machines, or two containers, give the same pids."""

    @property
    def identity(self) -> tuple[int, int]:
        """What tells it from all others of the evidence: a pid alone does not."""
        return self.part, self.pid

    @property
    def forked(self) -> bool | None:
        """Started by fork; None when its stack does not tell."""
        for thread in self.threads:
            if thread.main:
                return is_forked(thread.frames)
        return None

    @property
    def main(self) -> ThreadStack | None:
        return next((thread for thread in self.threads if thread.main), None)

    @property
    def who(self) -> Who:
        """As an explanation names it; text without a pid gives processes numbers below zero."""
        return Who(
            pid=self.pid if self.pid > 0 else None,
            start=self.start,
            role=self.role,
            rank=self.rank,
            worker=self.worker,
            name=self.name,
        )


class LogText(Value):
    """The end of one log, oldest line first; untrusted, bounded, secrets removed."""

    source: str
    lines: tuple[str, ...]
    rank: int | None = None
    """Whose log it is, where each rank has its own."""
    part: int = 0
    """Of which piece of evidence: the pids in it are those of that piece."""


class CollectiveFact(Value):
    """The collective that one rank was in or at last, of its log or its Flight Recorder."""

    rank: int
    group: str = ""
    seq: int | None = None
    op: str | None = None
    """In capitals, without separators: ALLREDUCE."""
    size: str | None = None
    """Element counts or shapes, only compared for equality."""
    last_enqueued: int | None = None
    last_completed: int | None = None
    timed_out: bool = False


class HostFacts(Value):
    oom_kills: int | None = None
    """Kills by the memory killer in this cgroup since the attempt began, or ever when unknown."""
    oom_since_start: bool = False
    """Whether `oom_kills` counts from the start of the attempt."""
    shm_used_share: float | None = None
    memory_available_share: float | None = None
    swap_used_share: float | None = None
    swap_bytes_s: float | None = None
    """Moved to and from swap; of the whole machine."""
    load_per_core: float | None = None
    gpu_others: tuple[str, ...] = ()
    """Processes of others with memory on the GPUs of the training, for a person."""


class LockFact(Value):
    """A lock file that the training waits for or holds open."""

    path: str
    owner_alive: bool | None


class Evidence(Value):
    why: BundleWhy
    processes: tuple[ProcessEvidence, ...] = ()
    logs: tuple[LogText, ...] = ()
    exit: ExitStatus | None = None
    host: HostFacts = HostFacts()
    locks: tuple[LockFact, ...] = ()
    collectives: tuple[CollectiveFact, ...] = ()
    exchanging: tuple[int, ...] = ()
    """Ranks that began or completed a collective between two looks at their records."""
    world_size: int | None = None
    exceptions: tuple[ExceptionFact, ...] = ()
    """Of processes that are not among these, of torch elastic and of the output."""
    progressed_at: float | None = None
    """The last step of a rank that has ended, in Unix seconds."""


class BundleVerdict(Value):
    """verdict.json: what was decided, and which process was captured.

    Its request has the first half; the rest is what a collection found.
    """

    schema_version: int = 1
    id: str
    why: BundleWhy
    kind: str | None = None
    basis: str | None = None
    phase: Phase | None = None
    ranks: tuple[int, ...] = ()
    beat_age_s: float | None = None
    straggler: Straggler | None = None
    """As the supervisor had said it before."""
    at: float
    """Unix seconds."""
    attempt: int = 0
    words: str = ""
    """Why it was taken to be a stall, as the supervisor said it."""
    processes: tuple[CapturedProcess, ...] = ()
    command: tuple[str, ...] = ()
    exit: ExitStatus | None = None
    crash: CrashFact | None = None
    patience: Patience = Patience()
    fingerprint: str | None = None
    seconds: float = 0.0
    problem: str | None = None
    done: tuple[str, ...] = ()
    """What was or will be done about it."""
    hostname: str = ""
