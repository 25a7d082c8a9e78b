"""A library's own command that starts the training as a child, as `trl sft` does.

library_launcher.py kill    the child kills itself at step 10 of 20
library_launcher.py freeze  the child makes all steps; then the launcher waits for ever
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import watchdog_train

STEPS = 20


def train(kind: str) -> None:
    for step in range(1, STEPS + 1):
        watchdog_train.beat(step=step, total_steps=STEPS)
        time.sleep(0.1)
        if kind == "kill" and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)


def launch(kind: str) -> None:
    with watchdog_train.phase("load"):
        pass
    words = [sys.executable, *sys.argv, "child", "--a-long-option-of-the-script=" + "x" * 400]
    subprocess.run(words, check=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


if __name__ == "__main__":
    if "child" in sys.argv:
        train(sys.argv[1])
    else:
        launch(sys.argv[1])
