"""Healthy, and as loud or as fertile as it can be: output without an end, or a storm of forks."""

from __future__ import annotations

import argparse
import os
import sys
import time

import watchdog_train as wt

BLOCK = (b"x" * 1023 + b"\n") * 1024


def shout(seconds: float) -> int:
    """Output as fast as it is taken; how many MiB that was."""
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        os.write(sys.stdout.fileno(), BLOCK)
        count += 1
        wt.beat(step=count)
    return count


def storm(seconds: float) -> int:
    """Children of a moment, in bursts of fifty; how many there were."""
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        children = []
        for _ in range(50):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        count += len(children)
        wt.beat(step=count)
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("shout", "storm"))
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    count = (shout if args.how == "shout" else storm)(args.seconds)
    print(f"\nfinished count={count}", flush=True)


if __name__ == "__main__":
    main()
