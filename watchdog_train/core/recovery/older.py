"""A checkpoint that is valid in form, and with which attempts fail: older ones get a turn. Pure.

It may not load, or lead to NaN. Told by what the attempts of this run have come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import CheckpointFinding, CheckpointRef, Why

BY_A_CHECKPOINT = (None, "nan-loss")
"""Causes that a checkpoint may have; any other is known not to be its fault: a port, a GPU."""
LOADS_SEEN = ("hf", "lightning", "accelerate")
"""Formats whose loading is hooked: an attempt in which none began has not failed by it."""
SEEN_IF_NOTED = ("torch", "safetensors")
"""The same where a hook has noted the save; other scripts may read these files by themselves."""
TURNS = 2
"""Attempts from one unchanged checkpoint that fail the same way; then each older one has one."""


def failed_last(attempts: Sequence[AttemptRecord]) -> CheckpointRef | None:
    """The checkpoint of the newest attempt, where it is time for an older one; else None.

    Args:
        attempts: since the last newer step or checkpoint.
    """
    last = attempts[-1] if attempts else None
    # What was not loaded is not to blame, and an older one would not be loaded, either.
    if last is None or last.plan.checkpoint is None or not _used(last, attempts):
        return None
    used = [one.plan.checkpoint for one in attempts if _end(one) == _end(last)]
    files = Counter((one.path, one.saved_at) for one in used if one is not None)
    if _end(last) is None or max(files.values()) < TURNS:
        return None
    return last.plan.checkpoint


def why_spent(
    state: State, finding: CheckpointFinding, instead_of: CheckpointRef | None
) -> Why | None:
    """That attempts have failed with it, and that an older one was taken since, or is to be now.

    None: it has its turns before it, or a person has restarted the run since.
    """
    attempts = state.attempts[state.reopened_after :]
    failed = [
        index
        for index, attempt in enumerate(attempts)
        if attempt.plan.checkpoint is not None
        and _is_same(attempt.plan.checkpoint, finding)
        and _end(attempt) is not None
        and _used(attempt, attempts)
    ]
    if not failed:
        return None
    later = [attempt.plan.checkpoint for attempt in attempts[failed[-1] + 1 :]]
    others = [used for used in later if used is not None and used.path != finding.path]
    is_due = instead_of is not None and _is_same(instead_of, finding)
    if not (is_due or any(_before(used, finding.saved_at) for used in others)):
        return None
    last = attempts[failed[-1]]
    hung = last.stall_id is not None
    return Why(
        "hung-from-it" if hung else "failed-from-it",
        attempts=tuple(attempts[index].attempt for index in failed),
        step=last.last_step,
        exit=None if hung else last.code,
        signal=None if hung else last.signal,
    )


def may_replace(finding: CheckpointFinding, used: CheckpointRef) -> bool:
    """Whether it is an older state of the same training."""
    of_same = (finding.format, finding.home, finding.nth, finding.ordinal, finding.signature) == (
        used.format,
        used.home,
        used.nth,
        used.ordinal,
        used.signature,
    )
    return of_same and finding.path != used.path and _before(finding, used.saved_at)


def _used(attempt: AttemptRecord, attempts: Sequence[AttemptRecord]) -> bool:
    """Whether it may have failed by its checkpoint, which was loaded as far as anybody knows."""
    plan = attempt.plan.checkpoint
    noted = plan is not None and plan.format in SEEN_IF_NOTED and plan.how_checked == "recorded"
    seen = noted or (plan is not None and plan.format in LOADS_SEEN)
    watched = seen and attempt.first_beat_s is not None
    # What an attempt says last may be lost; one that failed the same way may have said it.
    alike = [one for one in attempts if _end(one) == _end(attempt)]
    began = any(one.began or one.load_begun for one in alike if one.plan.checkpoint is not None)
    not_loaded = watched and not began
    return attempt.resume != "contradicted" and not not_loaded


def _is_same(used: CheckpointRef, finding: CheckpointFinding) -> bool:
    """Whether an attempt was given this very checkpoint, unchanged since."""
    return used.path == finding.path and used.saved_at in (None, finding.saved_at)


def _before(one: CheckpointRef, saved_at: float | None) -> bool:
    return one.saved_at is None or saved_at is None or one.saved_at <= saved_at


def _end(attempt: AttemptRecord) -> tuple[object, ...] | None:
    """How it failed, to be compared; None where it did not, or nobody knows how."""
    if attempt.stall_id is not None:
        return ("hang",)  # whether a step was seen depends on when somebody looked
    if not attempt.code and attempt.signal is None:
        return None
    return attempt.crash.key if attempt.crash is not None else (attempt.code, attempt.signal)
