"""Hang: waiting for a lock file whose owner was killed before it could remove it."""

from __future__ import annotations

import os
import subprocess
import sys

import filelock
from zoo import Training, once, ready

TAKE = "import filelock, os; filelock.SoftFileLock('data.lock').acquire(); os._exit(9)"


def main() -> None:
    training = Training(0.05)
    training.resume(os.environ.get("WTRAIN_RESUME_FROM"))
    training.train(20)
    if once("hung-once"):
        subprocess.run([sys.executable, "-c", TAKE], check=False)
        ready()
        # The owner's pid is in the file; a newer filelock would notice that it is dead.
        with open("data.lock", "w", encoding="ascii"):
            pass
        with filelock.SoftFileLock("data.lock"):
            pass
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
