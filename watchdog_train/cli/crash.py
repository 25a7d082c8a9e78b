"""A bug of ours: one line for the user, the traceback in a file that a report can carry.

Must not raise, and must not put anything but our own frames and the command's name into the file.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

_MAX_CHARACTERS = 200_000


def report_crash(error: BaseException, arguments: Sequence[str]) -> str:
    """Write the crash file; the words for the user."""
    summary = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    written = _write(error, arguments)
    if written is None:
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {frame[0].filename}:{frame[0].lineno}" if frame else ""
        return f"wtrain: a bug of wtrain itself: {summary}{where} (no crash file could be written)"
    return f"wtrain: a bug of wtrain itself: {summary} (details in {written})"


def _write(error: BaseException, arguments: Sequence[str]) -> Path | None:
    try:
        from watchdog_train import __version__
        from watchdog_train.evidence.redact import redact_text
        from watchdog_train.store.places import state_directory

        folder = state_directory() / "crashes"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        # Arguments may hold a password; only the command's name is told.
        command = arguments[0] if arguments and arguments[0].isalpha() else ""
        text = (
            f"wtrain {__version__} {command}\n"
            f"Python {platform.python_version()} on {sys.platform}\n\n"
            + redact_text("".join(traceback.format_exception(error))[-_MAX_CHARACTERS:])
        )
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except (OSError, ImportError):
        return None
    return path
