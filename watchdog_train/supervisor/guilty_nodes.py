"""Machines that should not be used again, in a directory where the job's starter looks for them.

A file for each, called as the machine, with the reason: a batch script reads their names, and the
same machine that two supervisors name is one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.guilty import guilty_nodes
from watchdog_train.core.model import GuiltyNode, Why
from watchdog_train.report.why_text import why_text
from watchdog_train.supervisor.newest_text import NewestText
from watchdog_train.trusted_files import refuse_foreign_links
from watchdog_train.whole_files import replace_whole

WAIT_S = 5.0
"""For a directory on a file system that all nodes share."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""What can be the name of a file, and is a word to any shell. A peer says what it is called."""


class GuiltyNodes:
    """Names them at the end of one run; does nothing where nobody asks for it."""

    def __init__(self, wanted: str | None, *, cwd: str) -> None:
        """`wanted` is the setting: a directory, or None."""
        self._path = Path(cwd, wanted) if wanted is not None else None
        self._writer = NewestText(_write)

    def finish(self, state: State) -> Iterator[e.Noticed]:
        """Within a time limit; yields why they could not be named."""
        found = guilty_nodes(state)
        if self._path is None or not found:
            return
        named = tuple(one for one in found if _HOST.fullmatch(one.host))
        self._writer.write(self._path, msgspec.json.encode(named).decode())
        late = not self._writer.wait(WAIT_S)
        trouble = f"it took longer than {WAIT_S:g} s" if late else self._writer.trouble
        if trouble is None and len(named) < len(found):
            trouble = "the name of a machine is none that a file can have"
        if trouble is not None:
            why = Why("guilty-not-named", path=str(self._path), problem=trouble)
            yield e.Noticed(kind="guilty", pids=(), why=why)


def _write(directory: Path, content: bytes) -> None:
    refuse_foreign_links(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in msgspec.json.decode(content, type=tuple[GuiltyNode, ...]):
        replace_whole(directory / one.host, f"{why_text(one.why)}\n".encode("utf-8", "replace"))
