"""Reading files that training could have replaced by anything: only regular ones, never waiting."""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_train.trusted_files import open_read


def read_regular(path: str, cap_bytes: int, *, from_end: bool = False) -> tuple[bytes, int] | None:
    """The first (or last) bytes and the size of a regular file; None for anything else.

    A fifo would hold us at open, a device could do worse.
    """
    with suppress(OSError), open_read(path, follow=True) as file:
        size = os.fstat(file.fileno()).st_size
        if from_end:
            file.seek(max(0, size - cap_bytes))
        return file.read(cap_bytes), size
    return None
