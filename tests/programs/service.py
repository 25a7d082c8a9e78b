"""A service that trains in tasks: it trains, idles quietly for a long time, trains, and hangs once.

It says itself that it idles, as a worker of a task queue would around its wait for the next task.
"""

from __future__ import annotations

import argparse
import threading
import time

from zoo import Training, once

import watchdog_train


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle-s", type=float, default=15.0)
    args = parser.parse_args()
    Training(0.05, out="first").train(30)
    with watchdog_train.phase("idle"):
        time.sleep(args.idle_s)
    print("the second task begins", flush=True)
    second = Training(0.05, out="second")
    second.train(30)
    if once("hung-once"):
        threading.Event().wait()
    second.finish()


if __name__ == "__main__":
    main()
