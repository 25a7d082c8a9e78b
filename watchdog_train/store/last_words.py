"""The last words of processes that have ended: their slots, read after they were unlinked.

A client removes its slot at exit; what it wrote after the last poll (the last step of a training,
most of all) is still there for whoever holds the file open. Reads only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from watchdog_train.client import layout
from watchdog_train.core.model import SlotReading
from watchdog_train.store.slots import decode
from watchdog_train.trusted_files import open_regular

MOST_FILES = 128
"""More judged processes than this are not followed to their very last word."""


class LastWords:
    """Slots held open, by pid."""

    def __init__(self, slot_dir: Path | None) -> None:
        self._slot_dir = slot_dir
        self._open: dict[int, int] = {}

    def follow(self, pids: Iterable[int]) -> None:
        """Hold the slots of these processes from now on."""
        if self._slot_dir is None:
            return
        for pid in pids:
            if pid in self._open or len(self._open) >= MOST_FILES:
                continue
            with suppress(OSError):
                self._open[pid] = open_regular(self._slot_dir / f"{pid}{layout.SLOT_SUFFIX}")

    def read(self) -> dict[int, SlotReading]:
        """What the held slots say now, also those of the dead."""
        found = {pid: self.of(pid) for pid in self._open}
        return {pid: said for pid, said in found.items() if said is not None}

    def of(self, pid: int) -> SlotReading | None:
        """What the held slot of one process says now; None where none is held."""
        descriptor = self._open.get(pid)
        if descriptor is not None:
            with suppress(OSError):
                os.lseek(descriptor, 0, os.SEEK_SET)
                answer = decode(pid, os.read(descriptor, layout.SLOT_BYTES))
                if isinstance(answer, SlotReading):
                    return answer
        return None

    def forget(self) -> None:
        """Let all of them go: an attempt is over."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
