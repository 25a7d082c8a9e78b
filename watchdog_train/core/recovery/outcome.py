"""How a run ends: outcome, exit code and warning, from what its events say. Pure."""

from __future__ import annotations

from watchdog_train.core.detection.rank_gone import has_failed
from watchdog_train.core.events import RunFinished
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import Why, said

EXIT_RETRY_ELSEWHERE, EXIT_GAVE_UP, EXIT_REFUSED = 75, 76, 78


def finish(state: State) -> RunFinished:
    """The closing event of a run that has nothing left to do."""
    attempt = state.attempt
    if state.stop is not None:
        return RunFinished(
            outcome="stopped",
            exit_code=state.stop.exit_code,
            warning=_all(*_unsaved(state), *survivors(state)),
            why=Why("asked", who=state.stop.by),
        )
    if state.given_up is not None:
        return RunFinished(
            outcome=state.given_up_outcome or "gave_up",
            exit_code=state.given_up_code if state.given_up_code is not None else EXIT_GAVE_UP,
            warning=None,
            why=state.given_up,
        )
    if attempt is not None and attempt.code == 0 and attempt.stall_id is None:
        doubts = _all(*_doubts(state, attempt), *survivors(state))
        return RunFinished(outcome="succeeded", exit_code=0, warning=doubts, why=exited(attempt))
    if state.survivors:
        return RunFinished(
            outcome="gave_up",
            exit_code=EXIT_RETRY_ELSEWHERE,
            warning=_all(*survivors(state)),
            why=Why("survivors-block"),
        )
    if attempt is None:
        return RunFinished(
            outcome="failed", exit_code=EXIT_REFUSED, warning=None, why=Why("nothing-started")
        )
    if attempt.cannot_start:
        return RunFinished(
            outcome="failed",
            exit_code=EXIT_REFUSED,
            warning=None,
            why=Why("command-failed", because=(attempt.error or said(None),)),
        )
    stall = state.last_stall
    if attempt.stall_id is not None and stall is not None and stall.basis == "finishing":
        return RunFinished(
            outcome="succeeded",
            exit_code=0,
            warning=Why("finished-but-hung"),
            why=Why("training-finished"),
        )
    return RunFinished(
        outcome="failed", exit_code=child_code(attempt), warning=None, why=exited(attempt)
    )


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


def _all(*found: Why) -> Why | None:
    """One reason with the others behind it."""
    return found[0].plus(*found[1:]) if found else None


def _unsaved(state: State) -> tuple[Why, ...]:
    """A training that was asked to save and end: whether the save was seen."""
    asked = state.stop_asked
    if asked is None or not asked.expects_save or asked.saved is not None:
        return ()
    return (Why("unsaved"),)


def survivors(state: State) -> tuple[Why, ...]:
    """What is still alive after SIGKILL."""
    return (Why("survivors", pids=state.survivors),) if state.survivors else ()


def _doubts(state: State, attempt: AttemptRecord) -> tuple[Why, ...]:
    """Why an exit code of 0 may not be the whole truth."""
    doubts = []
    total = state.progress.total_steps
    if attempt.last_step is None:
        doubts.append(Why("no-step-seen"))
    elif total is not None and attempt.last_step < total:
        doubts.append(Why("ended-early", step=attempt.last_step, of=total))
    doubts += [Why("others-went-on", end=end) for end in state.rank_ends[:4] if has_failed(end)]
    if attempt.resume == "contradicted":
        doubts.append(Why("began-again"))
    elif attempt.resume == "not-confirmed":
        doubts.append(Why("not-confirmed"))
    return tuple(doubts)
