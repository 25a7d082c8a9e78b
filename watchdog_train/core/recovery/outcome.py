"""How a run ends: outcome, exit code and warning, from what its events say. Pure."""

from __future__ import annotations

from watchdog_train.core.detection.rank_gone import has_failed
from watchdog_train.core.events import RunFinished
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import Outcome, Why, said

EXIT_RETRY_ELSEWHERE, EXIT_GAVE_UP, EXIT_REFUSED = 75, 76, 78


def finish(state: State) -> RunFinished:
    """The closing event of a run that has nothing left to do."""
    attempt = state.attempt
    if state.stop is not None:
        warnings = (*_unsaved(state), *survivors(state))
        return _end("stopped", state.stop.exit_code, Why("asked", who=state.stop.by), *warnings)
    if state.given_up is not None:
        code = state.given_up_code if state.given_up_code is not None else EXIT_GAVE_UP
        return _end(state.given_up_outcome or "gave_up", code, state.given_up)
    if attempt is not None and attempt.code == 0 and attempt.stall_id is None:
        killed = (state.outlived,) if state.outlived is not None else ()
        warnings = (*_doubts(state, attempt), *killed, *survivors(state))
        return _end("succeeded", 0, exited(attempt), *warnings)
    if state.survivors:
        blocked = Why("survivors-block")
        return _end("gave_up", EXIT_RETRY_ELSEWHERE, blocked, *survivors(state))
    if attempt is None:
        return _end("failed", EXIT_REFUSED, Why("nothing-started"))
    if attempt.cannot_start:
        why = Why("command-failed", because=(attempt.error or said(None),))
        return _end("failed", EXIT_REFUSED, why)
    stall = state.last_stall
    if attempt.stall_id is not None and stall is not None and stall.basis == "finishing":
        return _end("succeeded", 0, Why("training-finished"), Why("finished-but-hung"))
    return _end("failed", child_code(attempt), exited(attempt))


def _end(outcome: Outcome, exit_code: int, why: Why, *warnings: Why) -> RunFinished:
    """The event; of several warnings the first has the others behind it."""
    warning = warnings[0].plus(*warnings[1:]) if warnings else None
    return RunFinished(outcome=outcome, exit_code=exit_code, warning=warning, why=why)


def child_code(attempt: AttemptRecord) -> int:
    """The child's own code, 128 + N for signal N, 75 when nobody knows it."""
    if attempt.code is not None:
        return attempt.code
    if attempt.signal is not None:
        return 128 + attempt.signal
    return EXIT_RETRY_ELSEWHERE


def exited(attempt: AttemptRecord) -> Why:
    """How an attempt ended."""
    return Why("exited", exit=attempt.code, signal=attempt.signal)


def _unsaved(state: State) -> tuple[Why, ...]:
    """A training that was asked to save and end: whether the save was seen."""
    asked = state.stop_asked
    if asked is None or not asked.expects_save or asked.saved is not None:
        return ()
    return (Why("unsaved"),)


def survivors(state: State) -> tuple[Why, ...]:
    """What is still alive after SIGKILL."""
    return (Why("survivors", pids=state.survivors),) if state.survivors else ()


def _could_resume(state: State, attempt: AttemptRecord) -> bool:
    """A save was seen before it: the checkpoint of its plan, or one that is gone or damaged."""
    before = (one for one in state.attempts if one.attempt < attempt.attempt)
    return attempt.plan.checkpoint is not None or any(one.saves for one in before)


def _doubts(state: State, attempt: AttemptRecord) -> tuple[Why, ...]:
    """Why an exit code of 0 may not be the whole truth."""
    doubts = [Why("exit-not-seen")] if attempt.how_known == "slot" else []
    total = state.progress.total_steps
    if attempt.last_step is None:
        doubts.append(Why("no-step-seen"))
    elif total is not None and attempt.last_step < total:
        doubts.append(Why("ended-early", step=attempt.last_step, of=total))
    doubts += [Why("others-went-on", end=end) for end in state.rank_ends[:4] if has_failed(end)]
    if attempt.resume == "contradicted":
        doubts.append(Why("began-again"))
    elif attempt.resume != "verified" and _could_resume(state, attempt):
        doubts.append(Why("not-confirmed"))
    return tuple(doubts)
