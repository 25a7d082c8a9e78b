"""Writes the numbers of a run for Prometheus, and keeps the child that serves them.

Must not wait for a disk or a client: a thread writes, a child serves.
"""

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
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.helper import Helper, module
from watchdog_train.supervisor.newest_text import NewestText
from watchdog_train.whole_files import replace_whole

OWN_FILE = "metrics.prom"
LAST_S = 2.0


def _replace(path: Path, content: bytes) -> None:
    # For node_exporter, which is another user; it reads only names in .prom.
    replace_whole(path, content, mode=0o644)


class Metrics:
    """The numbers of one run; does nothing unless they are wanted."""

    def __init__(self, policy: Policy, *, children: ChildTable, run_dir: Path, cwd: str) -> None:
        wanted = policy.metrics
        self._every_s = wanted.every_s
        self._port = wanted.port
        self._file: Path | None = None
        if wanted.file is not None:
            self._file = Path(cwd) / wanted.file
        elif wanted.port:
            self._file = run_dir / OWN_FILE
        self._helper = Helper(children, "metrics")
        self._serves = False
        self._next = 0.0
        self._writer = NewestText(_replace)
        self._trouble: Why | None = None

    def follow(self, state: State, observation: Observation) -> Iterator[e.Noticed]:
        """Write, if it is time; yields what a person should know, once."""
        if self._file is None or observation.now < self._next:
            return
        self._next = observation.now + self._every_s
        progress = run_progress(observation.sample, state, observation.steps_s)
        self._writer.write(self._file, metrics_text(state, observation, progress))
        yield from self._serve()
        if self._writer.trouble is not None:
            yield from self._say(Why("metrics-not-written", problem=self._writer.trouble or ""))

    def finish(self, state: State) -> None:
        """The last numbers, and the end of the child."""
        if self._file is not None:
            progress: RunProgress = state.progress
            self._writer.write(self._file, metrics_text(state, None, progress))
            self._writer.wait(LAST_S)
        self.close()

    def close(self) -> None:
        """The child ends when its stdin is closed."""
        self._helper.close()

    def _serve(self) -> Iterator[e.Noticed]:
        if self._port and not self._serves:
            self._serves = True
            argv = module("watchdog_train.metrics.serve", str(self._file), str(self._port))
            try:
                self._helper.start(argv, stays="stdout")
            except OSError as error:
                yield from self._say(Why("metrics-not-served", problem=error.strerror or ""))
        elif self._port and not self._helper.running:
            problem = self._helper.last_words().removeprefix("listening").strip()
            why = Why("metrics-not-served", problem=problem or "the process that serves has ended")
            yield from self._say(why)
            self._port = 0

    def _say(self, why: Why) -> Iterator[e.Noticed]:
        if why != self._trouble:
            self._trouble = why
            yield e.Noticed(kind="metrics", pids=(), why=why)
