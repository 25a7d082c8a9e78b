"""Says on the control page that the loop still turns, and where the run is, for `wtrain probe`.

Must not open or make a file: memory that is full or a disk that hangs would look like our end.
"""

from __future__ import annotations

from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.notices.vitals import Vitals
from watchdog_train.report.patience_text import waiting
from watchdog_train.supervisor.context import Context

TELL_EVERY_S = 1.0


class VitalSigns:
    """The words of one supervisor about itself; none where there is no page."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told_at = float("-inf")
        self._told: object = None

    def tell(self, state: State, observation: Observation | None = None) -> None:
        """Once a second, and at once when the run is in another state."""
        control, me = self._context.control, state.supervisor
        now = self._context.system.monotonic()
        attempt = state.attempt.attempt if state.attempt is not None else 0
        stage = (state.state, attempt)
        if control is None or me is None:
            return
        if stage == self._told and now - self._told_at < TELL_EVERY_S:
            return
        self._told, self._told_at = stage, now
        signs = observation.signs if observation is not None else None
        age_s = signs.age_s if signs is not None else None
        control.tell(
            Vitals(
                pid=me.pid,
                start=me.start,
                turned_s=now,
                state=state.state,
                attempt=attempt,
                step=signs.step if signs is not None else state.progress.step,
                progressed_s=now - age_s if age_s is not None else None,
                trains=_trains(state),
                waits=waiting(state, now) or "",
            )
        )


def _trains(state: State) -> bool:
    attempt = state.attempt
    stepped = attempt is not None and attempt.first_step_s is not None
    return state.state == "running" and stepped and state.suspicion is None
