"""Hang with helpers that left the family: double fork and setsid, one with an emptied environment.

Their parent is gone, their session is their own, and one has no token: only a subreaper finds it.
Writes the pids of the helpers into helpers.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from zoo import Training, once, ready

HELPER = "import time; time.sleep(1e6)"


def daemonize(env: dict[str, str]) -> None:
    """Starts a helper as a daemon does: fork, setsid, fork, exec."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("helpers.txt", "a", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
            os.execve(sys.executable, [sys.executable, "-S", "-c", HELPER], env)
        os._exit(0)
    os.wait()


def main() -> None:
    training = Training(0.05)
    training.resume(os.environ.get("WTRAIN_RESUME_FROM"))
    training.train(20)
    if once("hung-once"):
        daemonize(dict(os.environ))
        daemonize({})
        subprocess.Popen([sys.executable, "-S", "-c", HELPER], start_new_session=True)
        while Path("helpers.txt").read_text("ascii").count("\n") < 2:
            time.sleep(0.01)
        ready()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
