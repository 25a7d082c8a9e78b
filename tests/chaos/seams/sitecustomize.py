"""A wall clock that the campaign can set: time.time() plus what a file says."""

import os
import time

_path = os.environ.get("CHAOS_CLOCK")
if _path:
    _real = time.time

    def _shifted():
        try:
            with open(_path, encoding="ascii") as file:
                return _real() + float(file.read() or 0)
        except (OSError, ValueError):
            return _real()

    time.time = _shifted
