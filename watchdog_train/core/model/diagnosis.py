"""What a collection of evidence has brought, and what it says."""

from watchdog_train.core.model.explanation import Explanation
from watchdog_train.core.model.words import DiagnosisKind, Patience, Value

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


class JointAnswer(Value, frozen=True, kw_only=True):
    """What the evidence of all tasks of a job says together."""

    diagnosis: Diagnosis | None
    explanation: Explanation | None = None
    problem: str | None = None
    """Why there is none."""
    where: str | None = None
    """The bundle that holds its culprit."""


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
    explanation: Explanation | None = None
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
