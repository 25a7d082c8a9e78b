"""Hang that also ignores SIGTERM, SIGINT and SIGHUP: only SIGKILL ends it."""

from __future__ import annotations

import os
import signal
import threading

from zoo import Training, once, ready


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    training = Training(0.05)
    training.resume(os.environ.get("WTRAIN_RESUME_FROM"))
    training.train(20)
    if once("hung-once"):
        ready()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
