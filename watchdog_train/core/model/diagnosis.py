"""What a collection of evidence has brought."""

from watchdog_train.core.model.exceptions import CrashFact
from watchdog_train.core.model.explanation import Explanation
from watchdog_train.core.model.patience import Patience
from watchdog_train.core.model.words import Value


class JointAnswer(Value):
    """What the evidence of all tasks of a job says together."""

    explanation: Explanation | None
    problem: str | None = None
    """Why there is none."""
    where: str | None = None
    """The bundle that holds its root."""


class Missing(Value):
    """Evidence that could not be had."""

    pid: int
    why: str


class CapturedProcess(Value):
    """A row of a bundle's verdict.json."""

    pid: int
    start: int
    role: str
    rank: int | None
    worker: int | None
    state: str | None
    captured: bool
    why_not: str | None


class EvidenceResult(Value):
    """What a collector brought back."""

    stall_id: str
    dir: str
    processes: tuple[CapturedProcess, ...]
    explanation: Explanation | None
    patience: Patience = Patience()
    fingerprint: str | None
    seconds: float
    crash: CrashFact | None = None
    """What ended the attempt, or the rank that the others wait for."""
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
