"""Reading files that training could have replaced by anything: only regular ones, never waiting."""

from __future__ import annotations

import os
import stat


def read_regular(path: str, cap_bytes: int, *, from_end: bool = False) -> tuple[bytes, int] | None:
    """The first (or last) bytes and the size of a regular file; None for anything else.

    A fifo would hold us at open, a device could do worse.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        if from_end:
            os.lseek(descriptor, max(0, status.st_size - cap_bytes), os.SEEK_SET)
        parts = []
        while cap_bytes > 0:
            part = os.read(descriptor, cap_bytes)
            if not part:
                break
            parts.append(part)
            cap_bytes -= len(part)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts), status.st_size
