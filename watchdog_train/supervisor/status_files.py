"""Files about a run for other programs and people: metrics, termination message, report page.

Must not wait for a disk: a thread writes the small files, and a process with a deadline the page.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why
from watchdog_train.core.notices.poll_events import run_progress
from watchdog_train.core.policy import Policy
from watchdog_train.evidence.redact import redact_text
from watchdog_train.report.metrics_text import metrics_text
from watchdog_train.report.summary import verdict_text
from watchdog_train.reporting import WITHIN_S
from watchdog_train.supervisor.children import ChildTable, Helper, module
from watchdog_train.supervisor.resources import start_thread
from watchdog_train.trusted_files import (
    ForeignError,
    distrusted_owner,
    open_regular,
    refuse_foreign_links,
)
from watchdog_train.whole_files import replace_whole


class Effect:
    """One side effect of a run, see Outbox; every method returns at once."""

    last_s = 0.0
    """At the end of the run, for all effects together that have no other deadline."""

    @property
    def is_open(self) -> bool:
        """Something waits, or is on its way."""
        return False

    def until(self, began: float, now: float) -> float:  # noqa: ARG002
        """How long it is waited for at the end, that `began`, now that its turn has come."""
        return began + self.last_s

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """An event was recorded; `state` is the state after it."""

    def look(self, state: State, observation: Observation) -> None:
        """A turn of the loop."""

    def poll(self, state: State) -> Iterator[e.AnyEvent]:  # noqa: ARG002
        """Record its result, and begin what is due."""
        return iter(())

    def end(self, state: State) -> None:
        """The run has ended: the last output."""

    def give_up(self) -> Iterator[e.AnyEvent]:
        """Its time at the end of the run is over, or it is done."""
        return iter(())


class TextFile(Effect):
    """One file, written by a thread; of several waiting texts only the newest is written."""

    last_s = 2.0

    def __init__(self, path: Path, write: Callable[[Path, bytes], None]) -> None:
        """`write` may raise an OSError, which becomes `trouble`."""
        self.trouble: str | None = None
        """Why the last text that was tried was not written; None if it was."""
        self.path = path
        self._write = write
        self._waiting: deque[str] = deque(maxlen=1)
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._waiting) or self._writes

    @property
    def _writes(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def put(self, text: str) -> None:
        self._waiting.append(text)
        self._start()

    def poll(self, state: State) -> Iterator[e.AnyEvent]:  # noqa: ARG002
        self._start()
        return iter(())

    def _start(self) -> None:
        if self._waiting and not self._writes:
            self._thread = start_thread(self._run, self.path.name)

    def _run(self) -> None:
        while self._waiting:
            text = self._waiting.popleft()
            try:
                self._write(self.path, text.encode("utf-8", "replace"))
                self.trouble = None
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__


def replace(path: Path, content: bytes) -> None:
    """Atomically, and readable for node_exporter, another user, which reads only `*.prom`."""
    refuse_foreign_links(path)
    replace_whole(path, content, mode=0o644)


class Metrics(TextFile):
    def __init__(self, path: Path, every_s: float) -> None:
        super().__init__(path, replace)
        self._every_s = every_s
        self._next = 0.0
        self._said: str | None = None

    def look(self, state: State, observation: Observation) -> None:
        if observation.now >= self._next:
            self._next = observation.now + self._every_s
            progress = run_progress(observation.sample, state, observation.steps_s)
            self.put(metrics_text(state, observation, progress))

    def poll(self, state: State) -> Iterator[e.AnyEvent]:
        """Yields what a person should know, once."""
        yield from super().poll(state)
        if self.trouble not in (None, self._said):
            self._said = self.trouble
            why = Why("metrics-not-written", problem=self.trouble or "")
            yield e.Noticed(kind="metrics", pids=(), why=why)

    def end(self, state: State) -> None:
        self.put(metrics_text(state, None, state.progress))


KUBELETS = Path("/dev/termination-log")
"""Kubernetes' own default of `terminationMessagePath`."""
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
"""Every container of a pod has it."""
AUTO = "auto"
_WORTH = (e.EvidenceCollected, e.StallExplained, e.GivenUp, e.SupervisorLeft, e.RunFinished)


def overwrite(path: Path, content: bytes) -> None:
    """In place: the kubelet has mounted that very file, and another one is not seen by it."""
    refuse_foreign_links(path)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT, mode=0o644)
    try:
        about = os.fstat(descriptor)
        if path != KUBELETS and (why := distrusted_owner(about)) is not None:
            raise ForeignError(why, path)
        if about.st_nlink > 1:  # another user may have linked this name to a file of this user
            raise OSError(errno.EMLINK, "it has more than one name")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


class TerminationLog(TextFile):
    """The verdict of one run as the termination message of a container.

    Kubernetes shows it in `kubectl describe pod`, also when the logs are gone. It is written at
    every stall and crash, too: the container may be killed before the run ends.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, overwrite)

    def follow(self, event: e.AnyEvent, state: State) -> None:
        if isinstance(event, _WORTH):
            self.put(redact_text(verdict_text(state)))

    def end(self, state: State) -> None:
        self.put(redact_text(verdict_text(state)))

    def give_up(self) -> Iterator[e.AnyEvent]:
        trouble = f"it took longer than {self.last_s:g} s" if self.is_open else self.trouble
        if trouble is not None:
            why = Why("message-not-written", path=str(self.path), problem=trouble)
            yield e.Noticed(kind="termination", pids=(), why=why)


def files_wanted(
    policy: Policy, environ: Mapping[str, str], *, cwd: str, auto: Path = KUBELETS
) -> Iterator[TextFile]:
    """The files that the settings ask for; `auto` is the termination log of a container."""
    log, metrics = policy.output.termination_log, policy.metrics.file
    if log == AUTO:
        if environ.get(IN_KUBERNETES) and auto.is_file():
            yield TerminationLog(auto)
    elif log is not None:
        yield TerminationLog(Path(cwd, log))
    if metrics is not None:
        yield Metrics(Path(cwd, metrics), policy.timing.metrics_s)


END_WITHIN_S = 15.0
"""For the complete page at the end of a run: a person waits, and the plain page exists already."""
LONG_RUN_S = 60.0
"""A shorter run that succeeds gets only the page of its log, which takes milliseconds."""
WAITED_S = 60.0
"""Minimum age of a wait that is worth a page, and minimum time left until its limit."""
WAITS_EVERY_S = 600.0
"""A training may wait in each epoch; a page costs about a second of a CPU."""
_TOLD = (e.EvidenceCollected, e.StallExplained, e.WouldHaveKilled, e.StallRecovered)


def command(run_dir: Path) -> Sequence[str]:
    return module("watchdog_train.reporting", str(run_dir))


class ReportPage(Effect):
    """Rewrites the page after notable events, one child at a time."""

    def __init__(self, children: ChildTable, run_dir: Path) -> None:
        self._helper = Helper(children, "report")
        self._run_dir = run_dir
        self._due = self._shows_wait = False
        self._next_wait = 0.0

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """A stall has got its evidence or its diagnosis, or was over; the same of a long wait."""
        told = isinstance(event, _TOLD) or self._is_news_of_a_wait(event, state)
        self._due = self._due or told

    def _is_news_of_a_wait(self, event: e.AnyEvent, state: State) -> bool:
        match event:
            case e.Looked() if not self._shows_wait and event.mono >= self._next_wait:
                limit_s = event.limit_s if event.limit_s is not None else float("inf")
                left_s = event.since_mono + limit_s - event.mono
                self._shows_wait = min(event.mono - state.silent_since, left_s) >= WAITED_S
                if self._shows_wait:
                    self._next_wait = event.mono + WAITS_EVERY_S
                return self._shows_wait
            case e.SuspicionEnded() | e.StallDeclared() if self._shows_wait:
                self._shows_wait = False
                return True
            case _:
                return False

    def poll(self, state: State) -> Iterator[e.AnyEvent]:
        if self._due and not state.finished and not self._helper.running:
            self._due = False
            # A page that cannot be written now is written at the end of the run, which says so.
            with suppress(OSError):
                self._helper.start(command(self._run_dir), deadline_s=WITHIN_S)
        return iter(())


def deserves_whole_page(state: State) -> bool:
    """Whether a person will want more than the plain page."""
    if state.stalls or state.outcome != "succeeded" or state.restarts:
        return True
    if state.started_at is None or state.updated_at is None:
        return False
    return state.updated_at - state.started_at >= LONG_RUN_S


def write_whole_now(run_dir: Path) -> str | None:
    """Write the complete page within END_WITHIN_S; why there is only the plain one, or None."""
    try:
        subprocess.run(
            list(command(run_dir)),
            check=True,
            timeout=END_WITHIN_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"it was not written within {END_WITHIN_S:.0f} s"
    except (subprocess.CalledProcessError, OSError) as error:
        return str(error)[:200]
    return None
