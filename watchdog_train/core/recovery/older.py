"""A checkpoint that is valid in form, and with which attempts fail: older ones get a turn. Pure.

It may not load, or lead to NaN. Told by what the attempts of this run have come to.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import CheckpointFinding, CheckpointRef
from watchdog_train.core.recovery.outcome import exit_words

TURNS = 2
"""Attempts from the newest valid checkpoint that fail the same way; each older one has one."""


def failed_with(attempts: Sequence[AttemptRecord], finding: CheckpointFinding) -> list[int]:
    """Which of these attempts were given this very checkpoint, unchanged since, and failed."""
    return [
        index
        for index, attempt in enumerate(attempts)
        if attempt.plan.checkpoint is not None
        and _is_same(attempt.plan.checkpoint, finding)
        and _end(attempt) is not None
    ]


def why_spent(state: State, finding: CheckpointFinding, *, now: bool) -> str | None:
    """That attempts have failed with it, and that an older one was taken since or is to be `now`.

    None: it has its turns before it, or a person has restarted the run since.
    """
    attempts = state.attempts[state.reopened_after :]
    failed = failed_with(attempts, finding)
    if not failed:
        return None
    later = (attempt.plan.checkpoint for attempt in attempts[failed[-1] + 1 :])
    if not now and not any(used is not None and _is_older(used, finding) for used in later):
        return None
    numbers = " and ".join(str(attempts[index].attempt) for index in failed)
    one = f"attempt {numbers}" if len(failed) == 1 else f"attempts {numbers}"
    return f"{one} resumed from it and failed: {_words(attempts[failed[-1]])}"


def had_its_turns(
    attempts: Sequence[AttemptRecord], chosen: CheckpointFinding, *, is_older: bool
) -> bool:
    """Whether the newest of these attempts without progress failed with it the same way again.

    Args:
        attempts: since the last newer step or checkpoint.
        chosen: the checkpoint that the next attempt would resume from.
        is_older: it is itself taken in place of a newer one.
    """
    turns = 1 if is_older else TURNS
    failed = failed_with(attempts, chosen)[-turns:]
    if len(failed) < turns or failed[-1] != len(attempts) - 1:
        return False
    if attempts[-1].resume_ok is False:  # it was not loaded: nor would another one be
        return False
    return len({_end(attempts[index]) for index in failed}) == 1


def _is_same(used: CheckpointRef, finding: CheckpointFinding) -> bool:
    return used.path == finding.path and used.saved_at in (None, finding.saved_at)


def _is_older(used: CheckpointRef, finding: CheckpointFinding) -> bool:
    return used.path != finding.path and (used.saved_at or 0.0) <= (finding.saved_at or 0.0)


def _end(attempt: AttemptRecord) -> tuple[object, ...] | None:
    """How it failed, to be compared; None where it did not, or nobody knows how."""
    began = attempt.first_step is not None
    if attempt.stall_id is not None:
        return ("hang", began)
    if not attempt.code and attempt.signal is None:
        return None
    return (attempt.code, attempt.signal, began)


def _words(attempt: AttemptRecord) -> str:
    what = "it hung" if attempt.stall_id is not None else exit_words(attempt)
    step = attempt.last_step
    return f"{what} before its first step" if step is None else f"{what} at step {step}"
