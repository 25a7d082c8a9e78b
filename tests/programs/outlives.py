"""A script that exits with 0 while something that it has started goes on.

outlives.py daemon END        forks twice as daemons do, trains for 60 steps there, and ENDs: by
                              itself, `raise`, `kill` or `_exit`
outlives.py uploader SECONDS  trains, and leaves an uploader that writes for so long
outlives.py idle              trains, and leaves a process that idles
outlives.py slowly            trains after a while, until SIGTERM, at which it saves
outlives.py server            trains, and leaves a process that has made steps itself, and idles
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

UPLOAD = """
import sys, time
with open("upload.bin", "wb", buffering=0) as file:
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        file.write(bytes(1 << 20))
        time.sleep(0.05)
    open("uploaded", "w").close()
"""
SERVE = """
import time, watchdog_train
watchdog_train.beat(step=3)
open("serves", "w").close()
time.sleep(1e6)
"""


def train(steps: int) -> None:
    import watchdog_train

    for step in range(1, steps + 1):
        watchdog_train.beat(step=step, total_steps=steps)
        time.sleep(0.05)


def daemonize() -> None:
    if os.fork():
        sys.exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)


def main() -> None:
    kind = sys.argv[1]
    if kind == "daemon":
        import watchdog_train

        watchdog_train.attempt()  # the client is loaded before the fork
        daemonize()
        Path("daemon.pid").write_text(str(os.getpid()))
        train(60)
        Path("daemon.ends").touch()
        end = sys.argv[2]
        if end == "raise":
            raise RuntimeError("the daemon failed")
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "_exit":
            os._exit(0)
        return
    if kind == "slowly":
        until = time.monotonic() + 2.0
        while time.monotonic() < until:  # it imports
            pass
        signal.signal(signal.SIGTERM, lambda *_: (Path("saved").touch(), sys.exit(0)))
        import watchdog_train

        watchdog_train.beat(step=1)
        Path("slowly").touch()
        train(10_000)
    if kind == "server":
        subprocess.Popen([sys.executable, "-c", SERVE])
        while not Path("serves").exists():
            time.sleep(0.01)
    train(5)
    if kind == "uploader":
        subprocess.Popen([sys.executable, "-S", "-c", UPLOAD, sys.argv[2]])
    elif kind == "idle":
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1e6)"])


if __name__ == "__main__":
    main()
