"""Healthy: the main process waits while hundreds of children of a moment each do the work."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from zoo import Training, ready

LONG_S = float(os.environ.get("LONG_S", "12"))


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    until = time.monotonic() + LONG_S
    count = 0
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        count += 1
        time.sleep(0.1)
    print(f"children {count > 0}", flush=True)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
