"""Copies of files that a script overwrites in place: sees what to copy, and starts it."""

from __future__ import annotations

import shutil

from watchdog_train.core.actions import KeepCopy, RestoreCopy
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import SaveRecord
from watchdog_train.store.run_directory import RunDirectory
from watchdog_train.store.slots import read_saves
from watchdog_train.supervisor.context import Context

KEEP_S = 900.0
"""For copying a checkpoint at low priority: 4 GiB to a disk that takes 5 MB/s."""
RESTORE_S = 300.0
"""For putting a copy back, which a restart waits for: 4 GiB to a disk that takes 15 MB/s."""
EVERY_S = 5.0
"""Between looks at what the save hooks have noted."""
NEWEST = 50


class SavesSeen:
    """The newest finished saves of the present attempt."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = 0.0
        self._saves: tuple[SaveRecord, ...] = ()

    def forget(self) -> None:
        """Another attempt begins."""
        self._next, self._saves = 0.0, ()

    def look(self, attempt: AttemptRecord | None, now: float) -> tuple[SaveRecord, ...]:
        """Oldest first; none where no copy is to be kept of any."""
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
    from watchdog_train.checkpoints.keep import KeepRequest

    number = state.attempt.attempt if state.attempt is not None else 0
    kept = next((one for one in state.kept if one.path == action.save.path), None)
    request = KeepRequest(
        save=action.save,
        copy=str(context.directory.kept(action.save.path)),
        most_bytes=context.policy.recovery.keep_bytes,
        earlier=kept if kept is not None and kept.attempt < number else None,
    )
    context.tasks.keep_copy(request, context.staging_dir, deadline_s=KEEP_S)


def start_restore(context: Context, action: RestoreCopy) -> None:
    """Start the child that puts a copy back; its answer is an observation."""
    from watchdog_train.checkpoints.restore import RestoreRequest

    request = RestoreRequest(path=action.path, saved_at=action.saved_at, copy=action.copy)
    context.tasks.restore_copy(request, context.staging_dir, deadline_s=RESTORE_S)


def remove_copies(directory: RunDirectory) -> None:
    """After a success nobody needs them: what they were kept for has its end."""
    if not directory.kept_copies.is_symlink():
        shutil.rmtree(directory.kept_copies, ignore_errors=True)
