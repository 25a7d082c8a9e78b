"""Checkpoints as the training saves them: their directories, finished saves, copies of files."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from watchdog_train.checkpoints.disk import list_present, named_directories
from watchdog_train.core import events as e
from watchdog_train.core.actions import KeepCopy, RestoreCopy
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import KeepAnswer, ProcessId, RestoreAnswer, SaveRecord, Why
from watchdog_train.store.registry import Claims, forget_claims, publish_claims
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.store.slots import read_saves
from watchdog_train.supervisor.context import Context
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.whole_files import replace_json

MOST_DIRECTORIES = 64
LOOK_S = 2.0


def resumed_places(state: State) -> set[str]:
    """Where the checkpoints lay that attempts resumed from; our copies lie elsewhere."""
    used = {one.plan.checkpoint.path for one in state.attempts if one.plan.checkpoint is not None}
    copied = {one.copy for one in state.kept}
    return {os.path.dirname(path) for path in used - copied | {one.path for one in state.kept}}


def note_present(
    directory: RunDirectory, argv: Sequence[str], cwd: str, named: Sequence[str]
) -> None:
    """Note which checkpoints are there before the training begins.

    Clocks would not show it: a file server has its own. Waits LOOK_S at most.
    """

    def look() -> None:
        with suppress(OSError):
            replace_json(directory.present, list_present(named_directories(argv, cwd, named)))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(LOOK_S)


class OutputDirectories:
    """Output directories of one training, published for other supervisors."""

    def __init__(self, run_id: str, cwd: str, system: ProcessSystem) -> None:
        self._run_id = run_id
        self._cwd = cwd
        self._system = system
        self._me = system.identity(os.getpid()) or ProcessId(os.getpid(), 0)
        self._known: tuple[str, ...] = ()

    def claim(
        self, directories: Iterable[str], *, job: str | None
    ) -> Iterator[e.CheckpointsShared]:
        """Record new directories; an event for each that another run has.

        Other tasks of the same job may write to the same places.
        """
        # Links are not followed: that would ask a disk which may never answer.
        named = (os.path.normpath(os.path.join(self._cwd, each)) for each in directories)
        known = tuple(dict.fromkeys((*self._known, *named)))[:MOST_DIRECTORIES]
        new, self._known = known[len(self._known) :], known
        if not new:
            return
        mine = Claims(run_id=self._run_id, supervisor=self._me, directories=known, job=job)
        with suppress(OSError):
            for other in publish_claims(mine):
                shared = [path for path in new if path in other.directories]
                if not shared or (job is not None and other.job == job):
                    continue
                if self._system.is_alive(other.supervisor) is not False:
                    who, pid = other.run_id, other.supervisor.pid
                    for path in shared:
                        why = Why("shared-directory", who=who, pid=pid, path=path)
                        yield e.CheckpointsShared(directory=path, run_id=who, pid=pid, why=why)

    def release(self) -> None:
        """Remove all claims of this run, also by a killed supervisor."""
        forget_claims(self._run_id)


KEEP_S = 900.0
"""For copying a checkpoint at low priority: 4 GiB to a disk that takes 5 MB/s."""
RESTORE_S = 300.0
"""For putting a copy back, which a restart waits for: 4 GiB to a disk that takes 15 MB/s."""
EVERY_S = 5.0
"""Between readings of the records of the save hooks."""
NEWEST = 50


class SavesSeen:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = 0.0
        self._saves: tuple[SaveRecord, ...] = ()

    def forget(self) -> None:
        self._next, self._saves = 0.0, ()

    def look(self, attempt: AttemptRecord | None, now: float) -> tuple[SaveRecord, ...]:
        """Oldest first; none if no copy is to be kept."""
        recovery = self._context.policy.recovery
        if recovery.keep_bytes == 0 or recovery.observe:
            return ()
        if attempt is None or attempt.ended or not attempt.launched:
            return ()
        if now >= self._next:
            self._next = now + EVERY_S
            folder = self._context.directory.attempt(attempt.attempt)
            self._saves = read_saves(folder, NEWEST)
        return self._saves


def start_copy(context: Context, action: KeepCopy, state: State) -> None:
    """Start the child that copies; its answer is an observation."""
    from watchdog_train.checkpoints.copies import KeepRequest

    number = state.attempt.attempt if state.attempt is not None else 0
    kept = next((one for one in state.kept if one.path == action.save.path), None)
    request = KeepRequest(
        save=action.save,
        copy=str(context.directory.kept(action.save.path)),
        most_bytes=context.policy.recovery.keep_bytes,
        earlier=kept if kept is not None and kept.attempt < number else None,
    )
    save = action.save
    failed = KeepAnswer(path=save.path, copy="", format=save.format, step=save.step, saved_at=0.0)
    context.tasks.ask(
        "keep",
        request,
        context.staging_dir,
        KeepAnswer,
        lambda problem: msgspec.structs.replace(failed, problem=problem),
        deadline_s=KEEP_S,
    )


def start_restore(context: Context, action: RestoreCopy) -> None:
    """Start the child that puts a copy back; its answer is an observation."""
    from watchdog_train.checkpoints.copies import RestoreRequest

    request = RestoreRequest(path=action.path, saved_at=action.saved_at, copy=action.copy)
    context.tasks.ask(
        "restore",
        request,
        context.staging_dir,
        RestoreAnswer,
        lambda problem: RestoreAnswer(path=action.path, copy=action.copy, problem=problem),
        deadline_s=RESTORE_S,
    )


def remove_copies(directory: RunDirectory) -> None:
    """Only after a success: until then a restart may need them."""
    if not directory.kept_copies.is_symlink():
        shutil.rmtree(directory.kept_copies, ignore_errors=True)
