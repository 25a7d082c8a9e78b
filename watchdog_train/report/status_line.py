"""What the one line at the bottom of a terminal says about a run at this moment. Pure."""

from __future__ import annotations

from watchdog_train.core.actions import Observation
from watchdog_train.core.detection.track import judged
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress
from watchdog_train.report.patience_text import until_words
from watchdog_train.report.patience_text import what as awaited
from watchdog_train.report.summary import PREFIX, progress_line
from watchdog_train.report.words import duration


def status_line(state: State, observation: Observation, progress: RunProgress) -> str | None:
    """One line, None when there is nothing to say that a line of its own does not say."""
    text = _text(state, observation, progress)
    if text is None:
        return None
    again = state.attempt is not None and state.attempt.attempt > 1
    attempt = f", attempt {state.attempt.attempt}" if again and state.attempt is not None else ""
    return f"{PREFIX}{text}{attempt}"


def _text(state: State, observation: Observation, progress: RunProgress) -> str | None:
    now = observation.now
    if state.look is not None and state.look.patience.row == "input":
        return None  # somebody types
    if state.state == "backoff" and state.backoff_until is not None:
        scans = state.scan_failures and state.next_plan is None
        what = "scan of checkpoints" if scans else "attempt"
        return f"the next {what} starts in {duration(max(0.0, state.backoff_until - now))}"
    kill = state.kill
    if kill is not None and kill.stage in ("ask", "root"):
        waited = duration(now - kill.stage_mono)
        return f"waiting for the training to end, {waited}; Ctrl-C kills"
    attempt = state.attempt
    if attempt is None or attempt.ended or state.state not in ("starting", "running"):
        return None
    if state.muted:
        return f"stalled, reported only: no progress for {duration(observation.verdict.age_s)}"
    if state.suspicion is not None:
        silent = f"no progress for {duration(observation.verdict.age_s)}"
        if state.look is None:
            return f"{silent}, looking into it"
        return f"{silent}. {until_words(state.look)} {awaited(state.look.patience)}"
    line = progress_line(progress)
    if line is not None:
        return line
    phases = [slot.phase for _, slot in judged(observation.sample)]
    known = phases and phases[0] not in ("unknown", "train")
    doing = f", phase {phases[0]}" if known else ""
    return f"no step yet{doing}, {duration(now - attempt.launching_mono)}"
