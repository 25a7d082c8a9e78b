"""What other programs read of a run: metrics for Prometheus, a container's termination message, and
the control page for `wtrain probe`.

Must not wait for a disk: a thread writes the files.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress, Why
from watchdog_train.core.notices.poll_events import run_progress
from watchdog_train.core.notices.vitals import Vitals
from watchdog_train.core.policy import Policy
from watchdog_train.evidence.redact import redact_text
from watchdog_train.report.metrics_text import metrics_text
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.summary import verdict_text
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.resources import start_thread
from watchdog_train.trusted_files import (
    ForeignError,
    distrusted_owner,
    open_regular,
    refuse_foreign_links,
)
from watchdog_train.whole_files import replace_whole


class NewestText:
    """One file at a time; of several texts only the newest waits for its turn."""

    def __init__(self, write: Callable[[Path, bytes], None]) -> None:
        """`write` may raise an OSError, which becomes `trouble`."""
        self.trouble: str | None = None
        """Why the newest text that had its turn was not written; None when it was."""
        self._write = write
        self._waiting: tuple[Path, str] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, path: Path, text: str) -> None:
        """Returns at once."""
        with self._changed:
            self._waiting = (path, text)
            if self._thread is None:
                self._thread = start_thread(self._run, path.name)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Until nothing waits, or for so long; whether nothing waits."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                waiting = self._waiting
            if waiting is None:
                continue
            path, text = waiting
            try:
                self._write(path, text.encode("utf-8", "replace"))
                self.trouble = None
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__
            with self._changed:
                if self._waiting is waiting:
                    self._waiting = None
                self._changed.notify_all()


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
        if self._file is not None:
            progress: RunProgress = state.progress
            self._writer.write(self._file, metrics_text(state, None, progress))
            self._writer.wait(LAST_S)


KUBELETS = Path("/dev/termination-log")
"""Kubernetes' own default of `terminationMessagePath`."""
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
"""Every container of a pod has it."""
AUTO = "auto"
VERDICT_LAST_S = 2.0
_WORTH = (e.EvidenceCollected, e.StallExplained, e.GivenUp, e.SupervisorLeft)


class TerminationLog:
    """The verdict of one run as the termination message of a container; nothing unless asked for.

    Kubernetes shows it in `kubectl describe pod`, also when the logs are gone. It is written at
    every stall and crash, too: whoever kills the container may not wait for the end of the run.
    """

    def __init__(
        self, wanted: str | None, *, environ: Mapping[str, str], cwd: str, auto: Path = KUBELETS
    ) -> None:
        """`wanted` is the setting: a path, `auto` or None."""
        self._path: Path | None = Path(cwd, wanted) if wanted not in (None, AUTO) else None
        if wanted == AUTO and environ.get(IN_KUBERNETES) and auto.is_file():
            self._path = auto
        self._writer = NewestText(_overwrite)

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """Write what is known, if this event says more; returns at once."""
        if self._path is not None and isinstance(event, _WORTH):
            self._write(self._path, state)

    def finish(self, state: State) -> Iterator[e.Noticed]:
        """The last word, within a time limit; yields why nothing could be written."""
        if self._path is None:
            return
        self._write(self._path, state)
        late = not self._writer.wait(VERDICT_LAST_S)
        trouble = f"it took longer than {VERDICT_LAST_S:g} s" if late else self._writer.trouble
        if trouble is not None:
            why = Why("message-not-written", path=str(self._path), problem=trouble)
            yield e.Noticed(kind="termination", pids=(), why=why)

    def _write(self, path: Path, state: State) -> None:
        self._writer.write(path, redact_text(verdict_text(state)))


def _overwrite(path: Path, content: bytes) -> None:
    """In place: the kubelet has mounted that very file, and another one is not seen by it."""
    refuse_foreign_links(path)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT, mode=0o644)
    try:
        about = os.fstat(descriptor)
        if path != KUBELETS and (why := distrusted_owner(about)) is not None:
            raise ForeignError(why, path)
        if about.st_nlink > 1:  # another user may have given a file of ours this name
            raise OSError(errno.EMLINK, "it has more than one name")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


TELL_EVERY_S = 1.0


class VitalSigns:
    """Says on the control page, if there is one, that the loop still turns, and where the run is.

    Must not open or make a file: full memory or a disk that hangs would look like our end.
    """

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
