"""Stack samples of a run as its trace has kept them: what `wtrain replay` answers with. Pure."""

from __future__ import annotations

from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.model import EvidenceResult, Patience, PatienceRow
from watchdog_train.core.model.explanation import Silence
from watchdog_train.core.policy import Policy
from watchdog_train.core.replay import unseen
from watchdog_train.core.trace import TraceLine
from watchdog_train.explain.patience import limit_s

WAITED_FOR_S = 15.0
"""A stack sample of the run may come so much later; then the one before it counts."""


class RecordedLooks:
    """Hears each line before it is judged."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._at = 0.0
        self._asked_at: float | None = None
        self._fresh = False
        self._found_at = 0.0
        self._row: PatienceRow = "unknown"
        self._ends_at: float | None = None

    def hear(self, line: TraceLine) -> None:
        """Take what a stack sample of the run has found."""
        self._at = line.t
        if line.begins:
            self._row, self._ends_at, self._asked_at, self._fresh = "unknown", None, None, False
        if line.row is None:
            return
        left_s = line.look_in_s
        self._row, self._ends_at = line.row, self._at + left_s if left_s is not None else None
        self._fresh, self._found_at = True, self._at

    def answer(self, silence: Verdict) -> EvidenceResult | None:
        """Of a stack sample that is asked for now; None: not yet."""
        if self._asked_at is None:
            self._asked_at = self._at
        if not self._fresh and self._at - self._asked_at <= WAITED_FOR_S:
            return None
        if silence.progress_at > self._found_at:  # of an earlier silence
            self._row, self._ends_at = "unknown", None
        if self._row == "unknown" and silence.stopped:
            self._row = "stopped"
        self._asked_at, self._fresh = None, False
        where = Silence(phase=silence.phase, early=silence.early)
        left_s = max(0.0, self._ends_at - self._at) if self._ends_at is not None else None
        limit = limit_s(self._row, where, self._policy.patience)
        return unseen(Patience(row=self._row, limit_s=limit, look_in_s=left_s))
