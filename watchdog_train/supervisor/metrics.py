"""Writes the numbers of a run for Prometheus. Must not wait for a disk: a thread writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress, Why
from watchdog_train.core.notices.news import run_progress
from watchdog_train.core.policy import Policy
from watchdog_train.report.metrics_text import metrics_text
from watchdog_train.supervisor.newest_text import NewestText
from watchdog_train.trusted_files import refuse_foreign_links
from watchdog_train.whole_files import replace_whole

LAST_S = 2.0


def _replace(path: Path, content: bytes) -> None:
    refuse_foreign_links(path)
    # For node_exporter, which is another user; it reads only names in .prom.
    replace_whole(path, content, mode=0o644)


class Metrics:
    """The numbers of one run; does nothing unless they are wanted."""

    def __init__(self, policy: Policy, *, cwd: str) -> None:
        wanted = policy.metrics
        self._every_s = policy.timing.metrics_s
        self._file = Path(cwd) / wanted.file if wanted.file is not None else None
        self._next = 0.0
        self._writer = NewestText(_replace)
        self._trouble: str | None = None

    def follow(self, state: State, observation: Observation) -> Iterator[e.Noticed]:
        """Write, if it is time; yields what a person should know, once."""
        if self._file is None or observation.now < self._next:
            return
        self._next = observation.now + self._every_s
        progress = run_progress(observation.sample, state, observation.steps_s)
        self._writer.write(self._file, metrics_text(state, observation, progress))
        if self._writer.trouble not in (None, self._trouble):
            self._trouble = self._writer.trouble
            why = Why("metrics-not-written", problem=self._trouble or "")
            yield e.Noticed(kind="metrics", pids=(), why=why)

    def finish(self, state: State) -> None:
        """The last numbers."""
        if self._file is not None:
            progress: RunProgress = state.progress
            self._writer.write(self._file, metrics_text(state, None, progress))
            self._writer.wait(LAST_S)
