"""A training that stands still at a step until a file appears: asleep, or busy in native code.

It holds no GPU: the test that runs it says by a stand-in for NVML what the devices show.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import threading
import time

from zoo import Training, once


def stand(library: str | None, name: str) -> None:
    """Until the file `name` is there; with a library on a core of the CPU, without the GIL."""

    def arrives() -> None:
        while not os.path.exists(name):
            time.sleep(0.05)

    if library is None:
        arrives()
        return
    stop = ctypes.c_int(0)

    def let_go() -> None:
        arrives()
        stop.value = 1

    threading.Thread(target=let_go, daemon=True).start()
    ctypes.CDLL(library).cudaStreamSynchronize(ctypes.byref(stop))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleep-at", type=int)
    parser.add_argument("--spin-at", type=int)
    parser.add_argument("--library")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--resume")
    args = parser.parse_args()
    training = Training(step_s=0.05)
    training.resume(args.resume)
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    while training.step < args.steps:
        training.train(training.step + 1)
        if training.step == args.sleep_at and once("slept"):
            stand(None, "wake")
        if training.step == args.spin_at and once("spun"):
            stand(args.library, "let-go")
    training.finish()


if __name__ == "__main__":
    main()
