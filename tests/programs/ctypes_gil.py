"""Hang: a C call deadlocks while it holds the GIL (no Python thread of the process can run)."""

from __future__ import annotations

import ctypes
import os

from zoo import Training, once, ready

KEEP_GIL = True


def deadlock() -> None:
    """Locks one pthread mutex twice: for ever, in C."""
    library = (ctypes.PyDLL if KEEP_GIL else ctypes.CDLL)(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    ready()
    library.pthread_mutex_lock(mutex)


def main() -> None:
    training = Training(0.05)
    training.resume(os.environ.get("WTRAIN_RESUME_FROM"))
    training.train(20)
    if once("hung-once"):
        deadlock()
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
