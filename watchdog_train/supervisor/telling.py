"""Tells the user how far the training is: in one line of the terminal, or now and then in words.

Must not tell what is an event: those have lines of their own.
"""

from __future__ import annotations

from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.notices.news import run_progress
from watchdog_train.core.policy import Output
from watchdog_train.report.summary import PREFIX, progress_line, status_line
from watchdog_train.supervisor.display import Display

LINE_EVERY_S = 0.5
PATIENCE_S = 30.0
"""A plain line waits so long for the end of a line of the training."""


class Telling:
    """Progress of one run for whoever looks at our stderr."""

    def __init__(self, policy: Output, display: Display) -> None:
        self._policy = policy
        self._display = display
        self._line_at = 0.0
        self._told_at: float | None = None
        self._told_step: int | None = None

    def tell(self, state: State, observation: Observation) -> None:
        """Show the line, or say one if it is time."""
        policy, display = self._policy, self._display
        if policy.quiet or policy.progress_line_s is None:
            return
        if display.has_status_line:
            if observation.now - self._line_at >= LINE_EVERY_S:
                self._line_at = observation.now
                progress = run_progress(observation.sample, state, observation.steps_s)
                display.show_status(status_line(state, observation, progress))
        else:
            self._say(state, observation, policy.progress_line_s)

    def _say(self, state: State, observation: Observation, every_s: float) -> None:
        now = observation.now
        if self._told_at is None or state.state != "running":
            self._told_at = now if self._told_at is None else self._told_at
            return
        late_s = now - self._told_at - every_s
        if late_s < 0 or (late_s < PATIENCE_S and not self._display.is_between_lines):
            return
        self._told_at = now
        progress = run_progress(observation.sample, state, observation.steps_s)
        line = progress_line(progress)
        # The same step as before is a silence, and that has words of its own.
        if line is not None and progress.step != self._told_step:
            self._told_step = progress.step
            self._display.say(PREFIX + line)
