"""What happened: who does what, where, on which object, since when, who waits for it, and why.

Then how long such a silence is waited for, and what a collection of evidence has brought.
Values without a sentence: `report.explanation_text` renders them, and nothing else does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from watchdog_train.core.model.exceptions import CrashFact, ExceptionFact, Sender
from watchdog_train.core.model.gpu import DeviceLook
from watchdog_train.core.model.progress import RankSpans
from watchdog_train.core.model.waits import (
    ChildWait,
    FileLockWait,
    FileWait,
    PipeWait,
    SleepWait,
    Stopped,
    TerminalWait,
    Wait,
)
from watchdog_train.core.model.words import Phase, Role, Value


class Who(Value):
    """A process. The pid is None if the evidence, text from outside, does not have it."""

    pid: int | None
    start: int = 0
    host: str = ""
    role: Role = "other"
    rank: int | None = None
    worker: int | None = None
    name: str = ""
    """Of its program, as the kernel has it."""


class Place(Value):
    function: str
    file: str
    """From its package on; of the user's own code the name alone."""
    line: int
    """0: not known, as in native code."""


class _FrameWait(Value, tag_field="wait"):
    """A wait that only Python or native frames can name; the kernel sees a futex or a poll."""


class CollectiveWait(_FrameWait, tag="collective"):
    """An operation, or a rendezvous, that ends when all ranks of its group are in it."""

    op: str | None = None
    """`all_reduce`; None: the frames hide the operation, and the rank recorded none."""
    seq: int | None = None
    """As the rank itself recorded it."""
    inside: Literal["backward", "ddp"] | None = None
    """Started by a backward pass; ddp: by DDP's reducer, of gradients."""
    absent: RankSpans = ()
    """Ranks that have not entered it."""
    mismatched: RankSpans = ()
    """Ranks in another operation, or in the same one with another size."""


class StoreWait(_FrameWait, tag="store"):
    """A rendezvous or a key of the store; the store itself is a broker and never the cause."""

    absent: RankSpans = ()


class BatchWait(_FrameWait, tag="batch"):
    """The next batch of a DataLoader."""

    workers: tuple[Who, ...] = ()
    """Workers that may owe it: all that are not idle."""


class JoinWait(_FrameWait, tag="join"):
    """join() or a Future: another thread of the same process."""

    name: str | None = None


class PythonLockWait(_FrameWait, tag="python_lock"):
    """A Python lock, event or condition: its holder is not recorded."""

    sealed: bool = False
    """Every thread of the process waits so: none could release it."""
    kind: Literal["lock", "event", "condition", "semaphore", "barrier"] = "lock"
    signals: tuple[str, ...] = ()
    """Signals that the script itself handles: one may end the wait."""
    native_threads: tuple[str, ...] = ()
    """Threads unknown to Python, each of which may end the wait when it wakes up."""

    @property
    def from_outside(self) -> bool:
        """Whether something other than the process's Python threads may end it."""
        return bool(self.signals or self.native_threads)


class QueueWait(_FrameWait, tag="queue"):
    """A queue, in this process or between processes."""

    call: Literal["get", "put"] = "get"
    between_processes: bool = False


class GilWait(_FrameWait, tag="gil"):
    owner_tid: int | None = None
    owner: str | None = None
    """Name of the thread that holds it."""


class ImportWait(_FrameWait, tag="import"):
    """The lock of a module that another thread imports."""


class LoopWait(_FrameWait, tag="loop"):
    """An asyncio event loop without timer, connection, child or other thread: nothing wakes it."""


class Computing(_FrameWait, tag="computing"):
    cpu_share: float | None = None
    """Of one core."""
    changed: bool | None = None
    """Whether its frames differed between two stack samples."""
    asks: Place | None = None
    """A loop of the training's own code that only polls for an event."""


class End(_FrameWait, tag="end"):
    """It has ended: by a code, by a signal, or for an unknown reason."""

    code: int | None = None
    signal: int | None = None
    sender: Sender = "unknown"
    raised: ExceptionFact | None = None
    stays_in: Place | None = None
    """It has not exited: here it waits."""
    unnoticed: bool = False
    """A zombie: its parent has not asked for its exit status."""
    at_unix: float | None = None


Doing = (
    Wait
    | CollectiveWait
    | StoreWait
    | BatchWait
    | JoinWait
    | PythonLockWait
    | QueueWait
    | GilWait
    | ImportWait
    | LoopWait
    | Computing
    | End
)


class Standstill(Value):
    who: Who
    doing: Doing
    own: Place | None = None
    """The innermost frame of the user's own code."""
    at: Place | None = None
    """The library function that `own` called; without `own` the innermost frame that is no wrapper.
    Of an exception: where it was raised."""
    thread: str | None = None
    """The thread, if not the main one."""
    since_s: float | None = None
    step: int | None = None
    command: tuple[str, ...] = ()
    """Of a process without a line of the training's own code; secrets removed."""
    died: ExceptionFact | None = None
    """The exception that ended the only thread that could end this wait."""


class Victim(Value):
    """A process that waits for the root or another victim; never blamed."""

    who: Who
    how: Doing
    waits_for: tuple[Who, ...] = ()
    own: Place | None = None


Certainty = Literal["proven", "likely", "possible"]


class Because(Value):
    """What is known about such a root: library knowledge, never an observation."""

    family: str
    certainty: Certainty
    template: str = ""
    """The family's sentence with `who` and names of `values` in braces."""
    who: Who | None = None
    values: dict[str, str] = msgspec.field(default_factory=dict)
    link: str | None = None
    """The public thread or source from which it is known."""


RemedyGround = Literal[
    "named", "dataloader", "pin-memory-thread", "fork", "shared-tensors", "shared-memory",
    "datasets", "tokenizers", "huggingface-hub", "xet", "remote-file", "dead-lock-holder",
    "network-file-system", "collective", "nccl", "rendezvous", "rank-left-early", "rank-failed",
    "evaluation", "slow-rank", "save", "exit", "spawn", "own-code", "library-code", "gpu-wait",
    "gpu-fault", "gpu-memory", "host-memory", "native-threads", "wandb", "compiler", "nan", "mps",
]  # fmt: skip
"""What was seen that calls for a remedy; named: the cause alone. Shown as it is."""


class Remedy(Value):
    name: str
    by: Literal["family", "fact"]
    ground: RemedyGround = "named"


class Unknown(Value):
    """Something that could not be read and would have helped."""

    what: Literal["stack", "wait", "holder", "other-end", "ranks"]
    who: Who | None = None
    ranks: RankSpans = ()
    """If `what` is "ranks": those without any observation."""


ExplanationKind = Literal["hang", "crash", "slow", "stopped", "healthy", "unknown"]


class Explanation(Value):
    """What was observed, then the cause as far as known, then what may help."""

    kind: ExplanationKind
    root: Standstill | None = None
    """None: the evidence does not show one, or a deadlock has no single one."""
    alike: tuple[Who, ...] = ()
    """Others that do the same at the same place as the root, or as the first of `also`."""
    through: Standstill | None = None
    """If the root is not the deciding thread: the deciding thread, which waits for it."""
    threads: tuple[Standstill, ...] = ()
    """The threads of the root's process that may end its wait; if ranks wait in a collective, their
    other threads that do so too."""
    also: tuple[Standstill, ...] = ()
    """Further roots that do something else; which came first is unknown. Without a root: ranks that
    wait for others, one of which is missing."""
    knot: tuple[Standstill, ...] = ()
    """A deadlock: each waits for another of these, and nothing else could end it."""
    victims: tuple[Victim, ...] = ()
    died: ExceptionFact | None = None
    """The exception that ended a thread of the root's process since the last progress. A root that
    waits for a thread likely waits for this one."""
    because: Because | None = None
    remedies: tuple[Remedy, ...] = ()
    pointless: tuple[str, ...] = ()
    """Settings known to change nothing here: no experiment uses them."""
    unknown: tuple[Unknown, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the observation is the full answer, without a cause from library knowledge."""
        root = self.root
        if self.knot or root is None:
            return bool(self.knot)
        match root.doing:
            case End() as end:
                return bool(end.raised or end.signal or end.code)
            case (
                PipeWait(others=others) | ChildWait(children=others) | FileLockWait(holders=others)
            ):
                return bool(others)
            case FileWait(kind=kind):
                return kind == "fifo"
            case PythonLockWait(sealed=True):
                return True
        whole = isinstance(root.doing, (Stopped, SleepWait, TerminalWait, LoopWait))
        return whole or root.died is not None

    @property
    def tells(self) -> bool:
        return self.root is not None or bool(self.knot or self.also)

    @property
    def family(self) -> str | None:
        return self.because.family if self.because is not None else None


PatienceRow = Literal[
    "proven",  # nothing can end the wait, seen in two samples
    "dead-holder",  # a lock file whose owner, of this machine, is dead
    "releaser-died",  # the thread that should end it died of an exception; nothing else is at work
    "nobody-left",  # all possible releasers are idle, or all ranks are in one collective
    "fifo",  # a FIFO whose other end no process has open, in training or a save
    "unknown",  # what it waits for is not known; and what a false alarm would cost
    "at-work",  # it works, though idle by the numbers: as unknown
    "network",  # another machine is to answer
    "poll",  # it asks again, sleeps again at the same line, listens, or may be woken from outside
    "outsider",  # a living process of this machine that is no part of the job
    "sleep",  # one sleep: until its end
    "stopped",  # stopped, frozen or held by a debugger: detection.stopped_timeout_s
    "service",  # a worker of Celery or RQ without a task: no limit
    "input",  # a person has to type: no limit
    "live-lock",  # over the hard limit, busy with asking again and again; from its first sample
]
"""In the order of precedence: the first row that fits the root's wait applies."""


_OF_EVERY_STEP = (BatchWait, CollectiveWait, StoreWait)


class Silence(Value):
    """The phase of the training in which the job became silent."""

    phase: Phase = "train"
    early: bool = False
    """Before the third step."""


class Patience(Value):
    """From a sample of the waits: how long to continue waiting."""

    row: PatienceRow = "unknown"
    limit_s: float | None = None
    """Of quiet, from its beginning; None: without limit."""
    look_in_s: float | None = None
    """When the wait ends without help, if it does: sample again then."""
    root: Standstill | None = None
    line: Place | None = None
    """The line of the silent rank's own code."""


class SilentAt(Value):
    """Two silences with an equal value are the same."""

    own: Place
    """The user's innermost own frame."""
    wait: str
    steps: int


def silent_at(patience: Patience | None, steps: int) -> SilentAt | None:
    """None without a line of the user's own code, and for waits that every step has."""
    if patience is None or patience.root is None or patience.line is None:
        return None
    if isinstance(patience.root.doing, _OF_EVERY_STEP):
        return None
    return SilentAt(own=patience.line, wait=type(patience.root.doing).__name__, steps=steps)


class JointAnswer(Value):
    """From the evidence of all tasks of a job together."""

    explanation: Explanation | None
    problem: str | None = None
    where: str | None = None
    """The bundle that holds its root."""


class Missing(Value):
    pid: int
    why: str


class CapturedProcess(Value):
    pid: int
    start: int
    role: str
    rank: int | None
    worker: int | None
    state: str | None
    captured: bool
    why_not: str | None


class EvidenceResult(Value):
    stall_id: str
    dir: str
    processes: tuple[CapturedProcess, ...] = ()
    explanation: Explanation | None = None
    patience: Patience = Patience()
    fingerprint: str | None = None
    seconds: float = 0.0
    crash: CrashFact | None = None
    """What ended the attempt, or the rank that the others wait for."""
    device: DeviceLook | None = None
    """If requested: how ranks wait for their GPUs."""
    problem: str | None = None
    """Why the collection as such is incomplete; missing processes are in their rows."""

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
