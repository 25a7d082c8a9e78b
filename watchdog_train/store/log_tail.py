"""The end of an event log, where a new supervisor goes on.

Must not read the whole log: adoption does that once, and a log may have a gigabyte.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

from watchdog_train.errors import WtrainError
from watchdog_train.store.log_lines import MAX_LINE_BYTES, OtherVersionError, decode_line
from watchdog_train.store.log_reading import MAX_LOG_BYTES, corrupt, other_version
from watchdog_train.trusted_files import open_read, open_regular


def last_event(path: Path, size: int) -> tuple[int, int, bytes]:
    """Number of the last event, size up to the end of its line, and what is torn after it.

    Raises:
        WtrainError: the last whole line is no event.
    """
    if size > MAX_LOG_BYTES:
        raise WtrainError(
            f"the log has {size} bytes, more than {MAX_LOG_BYTES}",
            context=str(path),
            reference="event-log-too-large",
        )
    with open_read(path) as file:
        file.seek(max(0, size - 2 * MAX_LINE_BYTES))
        tail = file.read(2 * MAX_LINE_BYTES)
    whole, newline, torn = tail.rpartition(b"\n")
    if not newline:
        if size > len(torn):
            raise corrupt(path, None, f"its last line is longer than {MAX_LINE_BYTES} bytes")
        return 0, 0, torn
    try:
        last = decode_line(whole.rpartition(b"\n")[2])
    except OtherVersionError as error:
        raise other_version(str(path), error) from error
    except ValueError as error:
        raise corrupt(path, None, f"its last whole line is no event: {error}") from error
    return last.seq, size - len(torn), torn


def keep_torn(path: Path, torn: bytes) -> None:
    """Move a torn line aside, as evidence of where the supervisor was killed."""
    # On a full disk the copy fails; the caller still holds the bytes, and reports them.
    with contextlib.suppress(OSError):
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                fresh = path.with_name(f"{path.name}.torn-{number}")
                fd = open_regular(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(fd, "wb") as file:
                    file.write(torn)
                return
