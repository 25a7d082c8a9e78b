"""How an attempt's root ended: by its keeper's file or word, or without a keeper by the system's.

Must not conclude anything from a silence but after its time.
"""

from __future__ import annotations

from pathlib import Path

from watchdog_train.core.model import ExitStatus, ProcessId
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.records import read_exit
from watchdog_train.system.protocol import ExitWatch

FILE_WITHIN_S = 0.5
"""After its keeper's word, until an exit without exit.json is believed: the file tells more."""
SILENT_KEEPER_S = 30.0
"""A keeper that lives so long after the root, without a word or a file, will not tell any more."""


class Ending:
    """The exit of one attempt, as far as it is known."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told_at: float | None = None
        self._rootless_since: float | None = None
        self._root: ProcessId | None = None
        self._watch: ExitWatch | None = None
        self.status: ExitStatus | None = None
        self.known_at = 0.0
        """When it was read or told."""

    def follow(self, root: ProcessId | None) -> None:
        """Hold on to the root while it lives: its keeper may die before it."""
        if root is not None and self._root is None:
            self._root = root
            self._watch = self._context.system.watch_exit(root)

    def close(self) -> None:
        """Let go of the root."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def read(self, attempt_dir: Path, now: float) -> bool:
        """Ask the file, and the keeper; whether there is an answer that was not there before."""
        if self.status is not None:
            return False
        self.status = read_exit(attempt_dir) or self._told(now)
        self.known_at = now
        return self.status is not None

    def settle(
        self, attempt_dir: Path, now: float, *, root_alive: bool, keeper_alive: bool
    ) -> bool:
        """After a look: end the waiting when nobody is left to answer; whether it did."""
        if self.status is not None:
            return False
        if root_alive:
            self._rootless_since = None
            return False
        if self._rootless_since is None:
            self._rootless_since = now
        if keeper_alive and now - self._rootless_since < SILENT_KEEPER_S:
            return False
        keeper = self._context.keeper
        if keeper is not None:
            keeper.clear_wake()
        told = keeper.exit if keeper is not None else None
        gone = ExitStatus(code=None, signal=None, how_known="gone")
        # Read once more: the keeper may have written it since.
        self.status = read_exit(attempt_dir) or told or self._seen() or gone
        return True

    def _seen(self) -> ExitStatus | None:
        """What the system tells of a root whose keeper is gone, or does not answer."""
        if self._root is None:
            return None
        # We adopt orphans: its parent is this supervisor, if this one has started the keeper.
        how, status = "parent", self._context.children.adopted_status(self._root)
        if status is None and self._watch is not None:
            how, status = "kernel", self._watch.status()
        if status is None:
            return None
        code, signal = (status, None) if status >= 0 else (None, -status)
        return ExitStatus(code=code, signal=signal, how_known=how)

    def _told(self, now: float) -> ExitStatus | None:
        """What the keeper has told, once exit.json had its time to appear."""
        keeper = self._context.keeper
        if keeper is None or keeper.exit is None:
            return None
        if self._told_at is None:
            self._told_at = now
        return keeper.exit if now - self._told_at >= FILE_WITHIN_S else None
