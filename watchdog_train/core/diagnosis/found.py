"""What the families say of a piece of evidence, before it is held against what was observed."""

from watchdog_train.core.model import DiagnosisKind, Value

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
    ranked: tuple[RankedFamily, ...]
    remedies: tuple[str, ...]
