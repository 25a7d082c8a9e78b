"""The directories that this run's training writes to, each told when it becomes known."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from watchdog_train.checkpoints.files import list_present, named_directories
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import ProcessId, Why
from watchdog_train.store.claims import Claims, forget, publish
from watchdog_train.store.run_directory import RunDirectory
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.whole_files import replace_json

MOST_DIRECTORIES = 64
LOOK_S = 2.0


def resumed_places(state: State) -> set[str]:
    """Where the checkpoints lay that attempts have resumed from; copies of ours lie elsewhere."""
    used = {one.plan.checkpoint.path for one in state.attempts if one.plan.checkpoint is not None}
    copied = {one.copy for one in state.kept}
    return {os.path.dirname(path) for path in used - copied | {one.path for one in state.kept}}


def note_present(
    directory: RunDirectory, argv: Sequence[str], cwd: str, named: Sequence[str]
) -> None:
    """Note which checkpoints are there before the training begins.

    Clocks do not tell: a file server has its own. A disk that does not answer is not waited for.
    """

    def look() -> None:
        with suppress(OSError):
            replace_json(directory.present, list_present(named_directories(argv, cwd, named)))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(LOOK_S)


class OutputDirectories:
    """Where one training writes to, as its supervisor tells those of other runs."""

    def __init__(self, run_id: str, cwd: str, system: ProcessSystem) -> None:
        self._run_id = run_id
        self._cwd = cwd
        self._system = system
        self._me = system.identity(os.getpid()) or ProcessId(os.getpid(), 0)
        self._known: tuple[str, ...] = ()

    def claim(
        self, directories: Iterable[str], *, job: str | None
    ) -> Iterator[e.CheckpointsShared]:
        """Tell those that are new; an event for each that another run has.

        Args:
            directories: as the training names them.
            job: of which this run is a task; its other tasks may write to the same places.
        """
        # Links are not followed: that would ask a disk which may never answer.
        named = (os.path.normpath(os.path.join(self._cwd, each)) for each in directories)
        known = tuple(dict.fromkeys((*self._known, *named)))[:MOST_DIRECTORIES]
        new, self._known = known[len(self._known) :], known
        if not new:
            return
        mine = Claims(run_id=self._run_id, supervisor=self._me, directories=known, job=job)
        with suppress(OSError):
            for other in publish(mine):
                shared = [path for path in new if path in other.directories]
                if not shared or (job is not None and other.job == job):
                    continue
                if self._system.is_alive(other.supervisor) is not False:
                    yield from (_conflict(path, other) for path in shared)

    def release(self) -> None:
        """Take all of it back, and what a supervisor of this run has left that was killed."""
        forget(self._run_id)


def _conflict(path: str, other: Claims) -> e.CheckpointsShared:
    who, pid = other.run_id, other.supervisor.pid
    why = Why("shared-directory", who=who, pid=pid, path=path)
    return e.CheckpointsShared(directory=path, run_id=who, pid=pid, why=why)
