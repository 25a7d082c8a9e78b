"""Healthy, and at the mercy of others: from step 20 on it works only when nobody wants its CPU.

On one CPU and in the scheduler's idle class (Linux), which a user may enter but not leave. With
--hang it waits for ever instead of working, on the same crowded CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from pathlib import Path

import torch
from zoo import Training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", action="store_true")
    args = parser.parse_args()
    training = Training(step_s=0.02)
    training.train(20)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # a kernel that shares a CPU by sessions first
        Path("/proc/self/autogroup").write_text("19")
    Path("starving").touch()
    if args.hang:
        threading.Event().wait()
    square = torch.ones(600, 600)
    while True:
        for _ in range(40):
            square = (square @ square).clamp(0, 1)
        training.train_step()


if __name__ == "__main__":
    main()
