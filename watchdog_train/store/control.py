"""The control page of a run: requests to the training, and the state of the supervisor.

Single aligned words that never need to agree; it must not be made shorter or replaced while a
training may have it mapped.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.client import layout
from watchdog_train.core.notices.vitals import Vitals
from watchdog_train.trusted_files import open_read, open_regular, remove, rename

_REQUESTS = (
    (layout.C_SAVE_REQUEST, layout.C_SAVE_BASE),
    (layout.C_STOP_REQUEST, layout.C_STOP_BASE),
    (layout.C_DUMP_REQUEST, layout.C_DUMP_BASE),
)
_WORDS = struct.Struct(f"={layout.C_WAITS}Q{layout.WAITS_BYTES}s")


def vitals_in(slot_dir: Path | None) -> Vitals | None:
    """read_vitals() by the slot directory of a run; None without a readable page."""
    with suppress(OSError):
        return read_vitals(slot_dir / layout.CONTROL_FILE) if slot_dir is not None else None
    return None


def read_vitals(path: Path) -> Vitals | None:
    """The supervisor's last state; None before the first. OSError: the page cannot be opened."""
    with open_read(path) as file:
        data = file.read(_WORDS.size)
    if len(data) < _WORDS.size:
        return None
    words = _WORDS.unpack(data)
    state = words[layout.C_RUN_STATE] - 1
    if words[layout.C_MAGIC] != layout.MAGIC or not words[layout.C_TURNED_NS]:
        return None
    return Vitals(
        pid=words[layout.C_SUPERVISOR_PID],
        start=words[layout.C_SUPERVISOR_START],
        turned_s=words[layout.C_TURNED_NS] / 1e9,
        state=layout.RUN_STATES[state] if 0 <= state < len(layout.RUN_STATES) else "unknown",
        attempt=words[layout.C_ATTEMPT],
        step=words[layout.C_STEP] - 1 if words[layout.C_STEP] else None,
        progressed_s=words[layout.C_PROGRESSED_NS] / 1e9 or None,
        trains=words[layout.C_TRAINS] == 1,
        waits=words[layout.C_WAITS].partition(b"\0")[0].decode("utf-8", "ignore"),
    )


class ControlPage:
    """The supervisor's end of the control page; use `create` or `open`."""

    def __init__(self, descriptor: int) -> None:
        """Take over and map an open page; OSError closes the descriptor."""
        try:
            self._mapping = mmap.mmap(descriptor, layout.CONTROL_BYTES)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._words = memoryview(self._mapping).cast("Q")
        self._kept = bytes(self._mapping)

    @classmethod
    def create(cls, path: Path) -> ControlPage:
        """Make the page, or continue the numbers of an existing one.

        OSError: it cannot be made; the run continues, but its training cannot be asked.
        """
        try:
            return cls.open(path)
        except FileNotFoundError:
            pass
        except ValueError:
            remove(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = open_regular(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        # Real zeros: a hole in a sparse file is a SIGBUS in the training on a full disk.
        if os.write(descriptor, bytes(layout.CONTROL_BYTES)) != layout.CONTROL_BYTES:
            os.close(descriptor)
            raise OSError(f"no room for {path}")
        page = cls(descriptor)
        page._store({layout.C_MAGIC: layout.MAGIC})
        rename(temporary, path)
        return page

    @classmethod
    def open(cls, path: Path) -> ControlPage:
        """Map the page of a live run.

        FileNotFoundError: there is no page. ValueError: it is no control page of this version.
        OSError: it cannot be opened.
        """
        descriptor = open_regular(path, os.O_RDWR)
        if os.fstat(descriptor).st_size != layout.CONTROL_BYTES:
            os.close(descriptor)
            raise ValueError(f"{path} is not a control page")
        page = cls(descriptor)
        if page._words[layout.C_MAGIC] != layout.MAGIC:
            page.close()
            raise ValueError(f"{path} is not a control page of version {layout.VERSION}")
        return page

    def request_save(self, at_least: int = 0) -> int:
        """Ask for a save; returns the number that W_SAVE_ANSWERED will show.

        `at_least`: the number that the request has on the pages of other supervisors.
        """
        return self._next(layout.C_SAVE_REQUEST, at_least)

    def request_stop(self) -> int:
        """Ask to save and stop; returns the number that W_STOP_ANSWERED will show."""
        return self._next(layout.C_STOP_REQUEST)

    def request_dump(self) -> int:
        """Ask for stacks; returns the number that W_DUMP_ANSWERED will show."""
        return self._next(layout.C_DUMP_REQUEST)

    def begin_attempt(self, tasks: int = 1) -> None:
        """Before a launch: requests so far were for earlier attempts. `tasks`: those of the job."""
        for request, base in _REQUESTS:
            self._store({base: self.word(request)})
        self._store({layout.C_TASKS: tasks})

    def tell(self, vitals: Vitals) -> None:
        cap = layout.WAITS_BYTES - 1
        waits = vitals.waits.encode("utf-8", "replace")[:cap].ljust(layout.WAITS_BYTES, b"\0")
        self._store(
            {
                layout.C_SUPERVISOR_PID: vitals.pid,
                layout.C_SUPERVISOR_START: vitals.start,
                layout.C_TURNED_NS: int(vitals.turned_s * 1e9),
                layout.C_RUN_STATE: layout.RUN_STATES.index(vitals.state) + 1,
                layout.C_ATTEMPT: vitals.attempt,
                layout.C_STEP: 0 if vitals.step is None else vitals.step + 1,
                layout.C_PROGRESSED_NS: int((vitals.progressed_s or 0.0) * 1e9),
                layout.C_TRAINS: int(vitals.trains),
                **dict(enumerate(memoryview(waits).cast("Q"), layout.C_WAITS)),
            }
        )

    def close(self) -> None:
        """Unmap; the file stays for the training."""
        self._words.release()
        self._mapping.close()
        os.close(self._descriptor)

    def __enter__(self) -> ControlPage:  # noqa: PYI034 - typing.Self is 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, word: int, at_least: int = 0) -> int:
        number = max(self.word(word) + 1, at_least)
        self._store({word: number})
        return number

    def word(self, word: int) -> int:
        """One of layout.C_...; the number of the newest request, 0 before the first."""
        if self._is_whole():
            return self._words[word]
        return memoryview(self._kept).cast("Q")[word]

    def _store(self, numbers: Mapping[int, int]) -> None:
        if self._is_whole():
            for word, number in numbers.items():
                self._words[word] = number
            self._kept = bytes(self._mapping)
        else:
            kept = bytearray(self._kept)
            words = memoryview(kept).cast("Q")
            for word, number in numbers.items():
                words[word] = number
            self._kept = bytes(kept)

    def _is_whole(self) -> bool:
        """Restore a page that was truncated: behind its end a mapping is a SIGBUS for us.

        If memory is too full for that, the training gets no more requests; waits for its answers
        time out.
        """
        with suppress(OSError):
            if os.fstat(self._descriptor).st_size >= layout.CONTROL_BYTES:
                return True
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, self._kept)
            return os.fstat(self._descriptor).st_size >= layout.CONTROL_BYTES
        return False
