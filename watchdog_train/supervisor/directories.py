"""The directories that this run's training writes to, each claimed when it becomes known."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.together import in_one_boat
from watchdog_train.core.model import Why
from watchdog_train.store.claims import Claimant, Release, claim, forget
from watchdog_train.store.run_paths import RunDirectory

MOST_DIRECTORIES = 64
MOST_PLACES, PATH_CAP = 16, 4096


def places_of_all(own: Iterable[str], observation: Observation, state: State) -> tuple[str, ...]:
    """Where all tasks that train one world save: the one of rank 0 may be another one."""
    theirs = {
        place
        for peer in in_one_boat(observation, state)
        for place in peer.summary.places[:MOST_PLACES]
        if os.path.isabs(place) and len(place) < PATH_CAP
    }
    return tuple(sorted({*own} | theirs))


def resumed_places(state: State) -> set[str]:
    """Where the checkpoints lay that attempts have resumed from; copies of ours lie elsewhere."""
    used = {one.plan.checkpoint.path for one in state.attempts if one.plan.checkpoint is not None}
    copied = {one.copy for one in state.kept}
    return {os.path.dirname(path) for path in used - copied | {one.path for one in state.kept}}


def runs_of_peers(observation: Observation, state: State) -> tuple[RunDirectory, ...]:
    """The run directories of the tasks that train one world with this one, as they name them.

    One on a disk of another machine is not there, and says nothing.
    """
    named = (Path(peer.summary.run_dir) for peer in in_one_boat(observation, state))
    return tuple(RunDirectory(path) for path in named if path.is_absolute())


class OutputDirectories:
    """Claims of one supervisor; they end with it, however that one ends."""

    def __init__(self, run_id: str, cwd: str) -> None:
        self._run_id = run_id
        self._cwd = cwd
        self._held: dict[str, Release] = {}
        self._asked: set[str] = set()

    def claim(
        self, directories: Iterable[str], *, job: str | None
    ) -> Iterator[e.CheckpointsShared]:
        """Take those that are new; an event for each that another run has.

        Args:
            directories: as the training names them.
            job: of which this run is a task; its other tasks may write to the same places.
        """
        for named in directories:
            # Links are not followed: that would ask a disk which may never answer.
            path = os.path.normpath(os.path.join(self._cwd, named))
            if path in self._asked or len(self._asked) >= MOST_DIRECTORIES:
                continue
            self._asked.add(path)
            me = Claimant(run_id=self._run_id, pid=os.getpid(), directory=path, job=job)
            answer = claim(path, me)
            if isinstance(answer, Claimant):
                if job is not None and answer.job == job:
                    continue
                yield _conflict(path, answer)
            elif answer is not None:
                self._held[path] = answer

    def release(self) -> None:
        """Give all of them back, and those of a supervisor of this run that was killed."""
        while self._held:
            self._held.popitem()[1]()
        forget(self._run_id)


def _conflict(path: str, other: Claimant) -> e.CheckpointsShared:
    why = Why("shared-directory", who=other.run_id, pid=other.pid, path=path)
    return e.CheckpointsShared(directory=path, run_id=other.run_id, pid=other.pid, why=why)
