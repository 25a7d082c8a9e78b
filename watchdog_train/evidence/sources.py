"""The text of the source line that a frame points at: untrusted, bounded, never over a network.

It opens no file on a network: a file system of a dead server blocks its reader forever.
"""

from __future__ import annotations

import ast
import os
from contextlib import suppress

from watchdog_train.evidence.logs import clean_line
from watchdog_train.system import proc
from watchdog_train.system.file_systems import NETWORK_FILE_SYSTEMS
from watchdog_train.trusted_files import read_regular

_FILE_CAP_BYTES = 2 << 20
_LINE_CAP = 200


class SourceReader:
    def __init__(self) -> None:
        self._files: dict[str, list[bytes]] = {}
        self._network = _network_mounts()

    def line(self, path: str, number: int) -> str | None:
        """Line `number` of the file; None if it is missing or not safe to read."""
        lines = self._lines(path)
        if not 0 < number <= len(lines):
            return None
        text = lines[number - 1].decode("utf-8", "replace").strip()
        return clean_line(text)[:_LINE_CAP] or None

    def tree(self, path: str) -> ast.Module | None:
        """The parsed file; None if it is missing, not safe to read, or no Python."""
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.parse(b"\n".join(self._lines(path)))
        return None

    def _lines(self, path: str) -> list[bytes]:
        if not path.endswith(".py") or not os.path.isabs(path):
            return []
        if any(path.startswith(mount) for mount in self._network):
            return []  # a dead server would hold us in the kernel
        if path not in self._files:
            found = read_regular(path, _FILE_CAP_BYTES, follow=True)
            self._files[path] = [] if found is None else found[0].split(b"\n")
        return self._files[path]


def _network_mounts() -> tuple[str, ...]:
    found = proc.mounts(proc.read("/proc/self/mountinfo") or b"")
    return tuple(
        place.rstrip("/") + "/"
        for place, kind in found
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse")
    )
