"""Why something was done, found or refused: a code and the values it speaks of. No prose.

report.why_text renders it, once, at the edge.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.model.exceptions import CrashFact
from watchdog_train.core.model.gpu import GpuHolder
from watchdog_train.core.model.processes import Outliving, RankEnd
from watchdog_train.core.model.waits import Stopped
from watchdog_train.core.model.words import Phase, Value

WhyCode = str
"""A key of report.why_text.SENTENCES, the only list of them; a test compares it with the code."""


class Why(Value, kw_only=False, omit_defaults=True, repr_omit_defaults=True):
    """One reason; each code has its own fields, and the others are absent."""

    code: WhyCode
    who: str = ""
    """A person, program, task or machine."""
    names: tuple[str, ...] = ()
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    pid: int | None = None
    pids: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    step: int | None = None
    count: int | None = None
    of: int | None = None
    seconds: float | None = None
    limit_s: float | None = None
    phase: Phase = "unknown"
    path: str = ""
    other: str = ""
    """A second path."""
    option: str = ""
    size: int | None = None
    """Bytes."""
    need: int | None = None
    """Bytes."""
    number: float | None = None
    before: float | None = None
    exit: int | None = None
    signal: int | None = None
    problem: str = ""
    """Text from outside: of the system, a library, the training, a check of a file."""
    family: str = ""
    certainty: str = ""
    end: RankEnd | None = None
    held: Stopped | None = None
    crash: CrashFact | None = None
    holders: tuple[GpuHolder, ...] = ()
    outliving: tuple[Outliving, ...] = ()
    because: tuple[Why, ...] = ()

    def plus(self, *more: Why) -> Why:
        return msgspec.structs.replace(self, because=(*self.because, *more))


def said(text: str | None) -> Why:
    """A reason quoted from outside."""
    return Why("said", problem=text or "unknown")
