"""How a run ends: outcome, exit code and warning, from what its events say. Pure."""

from __future__ import annotations

from watchdog_train.core.detection.rank_gone import has_failed, how_it_ended
from watchdog_train.core.events import RunFinished
from watchdog_train.core.fold.state import AttemptRecord, State

EXIT_RETRY_ELSEWHERE, EXIT_GAVE_UP, EXIT_REFUSED = 75, 76, 78


def finish(state: State) -> RunFinished:
    """The closing event of a run that has nothing left to do."""
    attempt = state.attempt
    if state.stop is not None:
        return RunFinished(
            outcome="stopped",
            exit_code=state.stop.exit_code,
            warning="; ".join(filter(None, (_unsaved(state), survivors_words(state)))) or None,
            why=state.stop.by,
        )
    if state.given_up is not None:
        return RunFinished(
            outcome=state.given_up_outcome or "gave_up",
            exit_code=state.given_up_code if state.given_up_code is not None else EXIT_GAVE_UP,
            warning=None,
            why=state.given_up,
        )
    if attempt is not None and attempt.code == 0 and attempt.stall_id is None:
        doubts = "; ".join(filter(None, (_doubts(state, attempt), survivors_words(state))))
        return RunFinished(
            outcome="succeeded", exit_code=0, warning=doubts or None, why="exit code 0"
        )
    if state.survivors:
        return RunFinished(
            outcome="gave_up",
            exit_code=EXIT_RETRY_ELSEWHERE,
            warning=survivors_words(state),
            why="processes survived SIGKILL; nothing is started over them",
        )
    if attempt is None:
        return RunFinished(
            outcome="failed", exit_code=EXIT_REFUSED, warning=None, why="nothing was started"
        )
    if attempt.how_known == "not-started":
        return RunFinished(
            outcome="failed",
            exit_code=EXIT_REFUSED,
            warning=None,
            why=f"the command could not be started: {attempt.error}",
        )
    stall = state.last_stall
    if attempt.stall_id is not None and stall is not None and stall.basis == "finishing":
        return RunFinished(
            outcome="succeeded",
            exit_code=0,
            warning="the training was finished, but its process hung and was ended",
            why="training finished",
        )
    return RunFinished(
        outcome="failed", exit_code=child_code(attempt), warning=None, why=exit_words(attempt)
    )


def child_code(attempt: AttemptRecord) -> int:
    """The child's own code, 128 + N for signal N, 75 when nobody knows it."""
    if attempt.code is not None:
        return attempt.code
    if attempt.signal is not None:
        return 128 + attempt.signal
    return EXIT_RETRY_ELSEWHERE


def exit_words(attempt: AttemptRecord) -> str:
    """How an attempt ended, for a person."""
    if attempt.code is not None:
        return f"exit code {attempt.code}"
    if attempt.signal is not None:
        return f"killed by signal {attempt.signal}"
    return "ended, and nobody was left to see how"


def _unsaved(state: State) -> str | None:
    """A training that was asked to save and end: whether the save was seen."""
    asked = state.stop_asked
    if asked is None or not asked.expects_save or asked.saved is not None:
        return None
    return "it was asked to save first, and no whole checkpoint was seen since"


def survivors_words(state: State) -> str | None:
    """What is still alive after SIGKILL, None when nothing is."""
    if not state.survivors:
        return None
    return "still alive after SIGKILL: " + ", ".join(map(str, state.survivors))


def _doubts(state: State, attempt: AttemptRecord) -> str | None:
    """Why an exit code of 0 may not be the whole truth."""
    doubts = []
    total = state.progress.total_steps
    if attempt.last_step is None:
        doubts.append("no training step was seen")
    elif total is not None and attempt.last_step < total:
        doubts.append(f"ended at step {attempt.last_step} of {total}")
    doubts += [
        f"{how_it_ended(end)}, and the others went on"
        for end in state.rank_ends[:4]
        if has_failed(end)
    ]
    if attempt.resume == "contradicted":
        doubts.append("the checkpoint was not loaded: training began again at a lower step")
    elif attempt.resume == "not-confirmed":
        doubts.append("resume not confirmed")
    return "; ".join(doubts) or None
