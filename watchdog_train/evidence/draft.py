"""The evidence so far, kept in the staging folder during a collection.

On a machine without time to spare a collector may be killed at its deadline. Then this is all that
is left of it: the stacks that came back, and for every other process the reason or "not reached".
It is a bundle without a diagnosis: `wtrain diagnose DIR` makes one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.evidence import bundle
from watchdog_train.evidence.redact import write_json
from watchdog_train.evidence.request import PARTIAL_FILE, EvidenceRequest
from watchdog_train.evidence.targets import Target

_EVERY_S = 0.5
"""Seconds between two versions, while tools return one after the other, to keep the cost low."""
_PAUSE_PER_COST = 10.0
"""Pause per processor time of a version: with many processes drafts must stay a small part."""
CUT_SHORT = "the collector was ended before it was done: this is what it had by then"


class Draft:
    def __init__(self, request: EvidenceRequest, targets: Sequence[Target], started: float) -> None:
        """`started`: monotonic seconds."""
        self._request = request
        self._targets = targets
        self._started = started
        self._staging = Path(request.staging_dir)
        self._written: dict[int, tuple[ThreadStack, ...]] = {}
        self._next = 0.0
        self._changed = False
        self.problem: str | None = None
        """Why it cannot be written; None: it can."""

    def changed(self) -> None:
        """Note new evidence; keep() writes it once the last version is old enough."""
        self._changed = True

    def keep(self) -> None:
        if self._changed and time.monotonic() >= self._next:
            self.keep_now()

    def keep_now(self) -> None:
        if self.problem is not None:
            return
        began_s = time.process_time()
        try:
            self._write()
        except OSError as error:
            self.problem = f"what is collected cannot be kept on the way: {error.strerror}"
        cost_s = time.process_time() - began_s
        self._changed = False
        self._next = time.monotonic() + max(_EVERY_S, _PAUSE_PER_COST * cost_s)

    def _write(self) -> None:
        request = self._request
        verdict = msgspec.structs.replace(
            request.verdict,
            processes=tuple(target.row() for target in self._targets),
            seconds=round(time.monotonic() - self._started, 3),
            problem=CUT_SHORT,
        )
        result = bundle.result_of(verdict, request.staging_dir)
        if request.mode == "full" and result.captured:
            evidence = Evidence(
                why=verdict.why, processes=tuple(target.evidence() for target in self._targets)
            )
            for one in evidence.processes:
                if one.threads and self._written.get(one.pid) is not one.threads:
                    bundle.write_stacks(self._staging, one)
                    self._written[one.pid] = one.threads
            bundle.write_verdict(self._staging, verdict, evidence)
        write_json(self._staging / PARTIAL_FILE, result)
