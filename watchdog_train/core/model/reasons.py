"""Why something was done, found or refused: a code and the values it speaks of. No prose.

report.why_text renders it, once, at the edge.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from watchdog_train.core.model.exceptions import CrashFact
from watchdog_train.core.model.gpu import GpuHolder
from watchdog_train.core.model.processes import Outliving, RankEnd
from watchdog_train.core.model.waits import Stopped
from watchdog_train.core.model.words import Phase, Value

WhyCode = Literal[
    "again", "again-with", "allow-anew", "allowed", "asked", "asked-by-with", "asked-to-save",
    "asked-to-stop", "attempt-ended", "attempt-failed", "attempt-hung", "attempt-stood-still",
    "before-this-run", "began-again", "behind-exit-0", "blind", "by-known-option",
    "cannot-ask", "cannot-start", "checkpoint-too-large", "command-failed",
    "command-interrupted", "continued", "copy-kept", "could-not-start", "cpu-unknown",
    "default-limit", "device-lacks", "device-wait", "diagnosis-names", "disk-low", "disk-silent",
    "elsewhere-unknown", "end-by-kernel", "end-by-parent", "ended-by-itself", "ended-early",
    "event-torn", "exited", "exit-not-seen", "experiment", "failed-from-it", "fallback",
    "finished-but-hung", "first-attempt", "first-step-behind", "from-start", "goes-on",
    "gpu-not-given-back", "gpu-other-holds", "gpu-ours-holds", "gpu-shared", "gpu-taken",
    "gpu-unnamed", "gpus-spin", "gpus-unseen", "guilty", "hung-from-it",
    "in-kernel", "in-memory-only",
    "input", "interrupted", "job-busy", "job-idle", "job-no-progress", "keeper-ended-early",
    "keeper-gone", "keeper-silent", "keeper-stays", "keeper-survived", "leader-anew", "leader-lost",
    "learnt-limit", "left-killed", "limit", "live-lock", "loaded", "loaded-but-anew",
    "loaded-but-at", "loaded-only",
    "machine-failed", "machine-lost", "machine-slept", "maybe-incomplete", "memory-low",
    "message-not-written", "metrics-not-written", "never-saved", "newer-waited",
    "newest-checkpoint", "next-noted", "no-better", "no-common-step", "no-heartbeat",
    "no-load-seen", "no-option-known", "no-output", "no-place", "no-progress", "no-proof",
    "no-remedy-left", "no-restart", "no-save-since", "no-stacks", "no-step-from-it", "no-step-seen",
    "no-step-yet", "no-valid-checkpoint", "nodes-meet", "not-allowed", "not-among-found",
    "not-available", "not-come", "not-confirmed", "not-ended-in-time", "not-ended-killed",
    "not-exited", "not-joint", "not-older", "not-proven", "not-rank-0", "not-resumed",
    "not-scanned", "not-through-program", "not-through-shell", "nothing-left",
    "nothing-left-to-try", "nothing-started",
    "now", "on-crash", "on-stall", "only-prints", "only-variable", "option-decides",
    "option-may-resume", "option-resumes", "other-in-limit",
    "others-may-finish", "others-wait", "others-went-on", "others-write", "our-bug", "outlived",
    "outlived-killed", "outlives",
    "output-lost", "over-stall-timeout", "over-startup-timeout", "own-count", "parser-knows",
    "passing-over", "plan-failed", "port-taken", "prints", "progress",
    "progress-before-kill", "put-back", "quiet-at-work", "rank-ended", "rank-ended-before",
    "rank-not-loaded", "reader-behind", "rebooted", "requeued", "restarted", "restarts-used",
    "resume-adds", "resume-by-api", "resume-by-hook", "resume-by-option", "resume-by-script",
    "resume-later",
    "resume-unknown", "resumed-from", "resumes-from", "run-over", "said",
    "same-again", "samples-left-out", "save-late", "save-not-taken", "save-overdue", "save-taken",
    "save-under-way", "scan-again", "scan-cut", "scan-failed", "scans-failed", "shared-directory",
    "starved", "stopped", "stopped-anew",
    "supervisor-gone", "supervisor-slept", "survived", "survived-frozen", "survivors",
    "survivors-block", "taking-back", "task-acknowledged", "task-delivered-again", "task-lost",
    "task-maybe-lost", "training-finished", "tree-idle", "trying", "unknown", "unsaved",
    "unseen", "valid-existed", "waited", "waited-for", "waits-for-agents", "waits-for-room",
    "waits-for-scan", "with-remedies", "world-elsewhere", "would-ask-again", "would-end-so-again",
    "wrong-arguments",
]  # fmt: skip


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
    """What `number` was before."""
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
        """The same with further reasons behind it."""
        return msgspec.structs.replace(self, because=(*self.because, *more))


def said(text: str | None) -> Why:
    """What somebody else has said, in his words."""
    return Why("said", problem=text or "unknown")
