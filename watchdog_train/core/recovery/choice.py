"""Which checkpoint the next attempt resumes from. Pure.

A checkpoint of valid form may not load, or lead to NaN. The results of this run's attempts show
that: after some of them older checkpoints get a turn.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from watchdog_train.core.diagnosis.error_classes import is_error
from watchdog_train.core.events import CheckpointRejected
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import CheckpointFinding, CheckpointRef, Survey, Value, Why, said

BY_A_CHECKPOINT = (None, "nan-loss")
"""Causes for which a checkpoint may be responsible; others (a port, a GPU) are independent of
it."""
LOADS_SEEN = ("hf", "lightning", "accelerate")
"""Formats whose loading is hooked: an attempt that loaded none did not fail by it."""
SEEN_IF_NOTED = ("torch", "safetensors")
"""The same if a hook noted the save; other scripts may read these files without a hook."""
TURNS = 2
"""Attempts from one unchanged checkpoint that fail the same way; then each older one has one."""
_REJECTED_CAP = 20
_SEPARATORS = re.compile(r"[/\\]")


class Choice(Value):
    chosen: CheckpointFinding | None
    rejected: tuple[CheckpointRejected, ...]
    spent: tuple[str, ...] = ()
    """Names of the rejected ones that are valid, but with which attempts failed."""


def choose_checkpoint(
    state: State, survey: Survey, *, instead_of: CheckpointRef | None = None
) -> Choice:
    """The newest valid checkpoint; one of unknown validity only if none is valid.

    One that attempts failed with is passed over if another valid one is left. `instead_of` asks
    for the next older one of the same training.
    """
    findings = survey.findings
    refused = [_refusal(finding, state) for finding in findings]
    fit = [index for index, why in enumerate(refused) if why is None]
    whole = [index for index in fit if findings[index].whole]
    failed = ((index, _why_spent(state, findings[index], instead_of)) for index in whole)
    spent = {index: why for index, why in failed if why is not None}
    fresh = [index for index in whole if index not in spent]
    if instead_of is not None:
        order = [index for index in fresh if _may_replace(findings[index], instead_of)]
    else:
        order = [*fresh, *whole, *fit]
    best = next(iter(order), None)
    rejected = [
        CheckpointRejected(
            path=finding.path,
            format=finding.format,
            why=refused[index]
            or spent.get(index)
            or (Why("not-older") if finding.whole else Why("no-proof", problem=finding.said)),
            torn=not finding.whole,
        )
        for index, finding in enumerate(findings)
        if best is None or index < best or _is_torn_later(finding, findings[best])
    ]
    return Choice(
        chosen=None if best is None else findings[best],
        rejected=tuple(rejected[:_REJECTED_CAP]),
        spent=tuple(name_of(findings[index].path) for index in spent if index < (best or 0)),
    )


def _is_torn_later(finding: CheckpointFinding, chosen: CheckpointFinding) -> bool:
    """A half-written save after the chosen one; no hook noted it, so the scan lists it behind."""
    same = finding.whole is False and finding.home == chosen.home
    return same and (finding.saved_at or 0.0) > (chosen.saved_at or math.inf)


def name_of(path: str) -> str:
    return _SEPARATORS.split(path.rstrip("/\\"))[-1] or path


def _refusal(finding: CheckpointFinding, state: State) -> Why | None:
    if finding.whole is False:
        return said(finding.said)
    unseen = dict(state.crew.unseen) if state.crew is not None else {}
    if finding.path in unseen:
        return unseen[finding.path]
    other = next((each for each in state.shared if _is_below(finding.path, each.directory)), None)
    if other is not None and finding.how_checked != "recorded":
        return Why("others-write", who=other.run_id)
    if finding.before_run:
        return Why("before-this-run")  # which began without it, or loads it through its own code
    last = state.attempt
    if last is None or last.plan.checkpoint is None or finding.whole:
        return None
    if last.plan.checkpoint.path == finding.path and not last.began:
        return Why("no-step-from-it", attempts=(last.attempt,), problem=finding.said)
    return None


def _is_below(path: str, directory: str) -> bool:
    parts, top = (_SEPARATORS.split(each.rstrip("/\\")) for each in (path, directory))
    return parts[: len(top)] == top


def failed_last(attempts: Sequence[AttemptRecord]) -> CheckpointRef | None:
    """The checkpoint of the newest of these attempts, if an older one is due; else None."""
    last = attempts[-1] if attempts else None
    # One that was not loaded is not the cause, and an older one would not be loaded, either.
    if last is None or last.plan.checkpoint is None or not _used(last, attempts):
        return None
    used = [one.plan.checkpoint for one in attempts if _end(one) == _end(last)]
    files = Counter((one.path, one.saved_at) for one in used if one is not None)
    if _end(last) is None or max(files.values()) < TURNS:
        return None
    return last.plan.checkpoint


def _why_spent(
    state: State, finding: CheckpointFinding, instead_of: CheckpointRef | None
) -> Why | None:
    """That attempts failed with it, and that an older one was used since, or is now due.

    None: it has turns left, or a person has restarted the run since.
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


def _may_replace(finding: CheckpointFinding, used: CheckpointRef) -> bool:
    this, that = (
        (one.format, one.home, one.nth, one.ordinal, one.signature) for one in (finding, used)
    )
    return this == that and finding.path != used.path and _before(finding, used.saved_at)


def _used(attempt: AttemptRecord, attempts: Sequence[AttemptRecord]) -> bool:
    """Whether it may have failed by its checkpoint: it was loaded, or that is unknown."""
    plan = attempt.plan.checkpoint
    formats = (
        (*LOADS_SEEN, *SEEN_IF_NOTED) if plan and plan.how_checked == "recorded" else LOADS_SEEN
    )
    watched = plan is not None and plan.format in formats and attempt.first_beat_s is not None
    # The last report of an attempt may be lost; one that failed the same way may have made it.
    alike = [one for one in attempts if _end(one) == _end(attempt)]
    began = any(one.began or one.load_begun for one in alike if one.plan.checkpoint is not None)
    raised = attempt.crash.exception if attempt.crash is not None else None
    # A script may have read the checkpoint without any hook.
    began = began or (raised is not None and is_error("checkpoint", raised.message))
    return attempt.resume != "contradicted" and (began or not watched)


def _is_same(used: CheckpointRef, finding: CheckpointFinding) -> bool:
    return used.path == finding.path and used.saved_at in (None, finding.saved_at)


def _before(one: CheckpointRef, saved_at: float | None) -> bool:
    return one.saved_at is None or saved_at is None or one.saved_at <= saved_at


def _end(attempt: AttemptRecord) -> tuple[object, ...] | None:
    """How it failed, for comparison; None if it did not, or that is unknown."""
    if attempt.stall_id is not None:
        return ("hang",)  # whether a step was seen depends on the time of the poll
    if not attempt.code and attempt.signal is None:
        return None
    return attempt.crash.key if attempt.crash is not None else (attempt.code, attempt.signal)
