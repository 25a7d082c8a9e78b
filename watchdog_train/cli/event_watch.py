"""The events of a run as they are written; `lost` ends a wait for a dead supervisor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from watchdog_train.cli.screen import echo
from watchdog_train.core.events import AnyEvent
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.report.narrative import narrate
from watchdog_train.store.lock import is_held
from watchdog_train.store.log_reading import (
    MAX_LINE_BYTES,
    OtherVersionError,
    decode_line,
    other_version,
)
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.trusted_files import open_read

POLL_S = 0.1
LOCK_EVERY_S = 1.0


class EventWatch:
    """The events of a run as they are written, and the state after each."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._offset = 0
        self._rest = b""
        self._ahead: deque[tuple[AnyEvent, State]] = deque()
        """Read, but not yet returned by wait()."""
        self._looked = 0.0
        self._free_looks = 0
        self.state = State()
        self.before = self.new()
        """Events from before the watch began."""

    def new(self) -> list[tuple[AnyEvent, State]]:
        """Events since the last call, each with the state after it; a damaged line is skipped."""
        try:
            with open_read(self._run.events) as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_LINE_BYTES:]
        found = []
        for line in lines:
            try:
                event = decode_line(line)
            except OtherVersionError as error:
                raise other_version(str(self._run.events), error) from error
            except ValueError:
                continue
            self.state = evolve(self.state, event)
            found.append((event, self.state))
        return found

    @property
    def lost(self) -> bool:
        """Whether no process holds the run although it has not finished."""
        now = time.monotonic()
        if now - self._looked >= LOCK_EVERY_S:
            self._looked = now
            free = is_held(self._run.lock) is False and not self.state.finished
            self._free_looks = self._free_looks + 1 if free else 0
        # A supervisor that exits normally is seen once, before its last event is read.
        return self._free_looks >= 2

    def wait(
        self, until: Callable[[AnyEvent], bool], timeout_s: float, *, tell: bool = False
    ) -> AnyEvent | None:
        """The first new event that fits; None at the deadline or when the supervisor is lost."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._ahead += self.new()
            while self._ahead:
                event, state = self._ahead.popleft()
                if tell:
                    for line in narrate(event, state):
                        echo(line, err=True)
                if until(event):
                    return event
            if time.monotonic() >= deadline or self.lost:
                return None
            time.sleep(POLL_S)
