"""A training without torch: it calls beat(), saves safetensors, and keeps a journal.

Its steps are a few additions, so that hundreds of it fit into an evening.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import time
from functools import partial

from chaos_journal import (
    Journal,
    Trouble,
    file_of,
    idle_if_asked,
    leave_starter_if_asked,
    save_and_rename,
)

idle_if_asked()

import watchdog_train as wt  # noqa: E402

HELPER = "import time; time.sleep(1e6)"
WEIGHTS = 8
FILLING = b"\0" * 65536


def daemonize(env: dict[str, str]) -> None:
    """A helper that leaves the family: fork, setsid, fork, exec."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-S", "-c", HELPER], env)
        os._exit(0)
    os.wait()


def path_of(step: int) -> str:
    return f"checkpoints/step-{step:06d}.safetensors"


def save(weights: list[float], path: str) -> None:
    """In two writes: whoever is killed in between leaves half a file."""
    header = {
        "weights": {"dtype": "F64", "shape": [WEIGHTS], "data_offsets": [0, 8 * WEIGHTS]},
        "filling": {
            "dtype": "U8",
            "shape": [len(FILLING)],
            "data_offsets": [8 * WEIGHTS, 8 * WEIGHTS + len(FILLING)],
        },
    }
    text = json.dumps(header).encode()
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        time.sleep(0.005)
        data = struct.pack(f"<{WEIGHTS}d", *weights) + FILLING
        if file.write(data) != len(data):
            raise OSError("no space left on device")


def load(path: str) -> tuple[list[float], int]:
    with open(file_of(path), "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + length)
        weights = list(struct.unpack(f"<{WEIGHTS}d", file.read(8 * WEIGHTS)))
    return weights, int(re.findall(r"step-([0-9]+)", path)[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=("beats", "helpers"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--trouble", choices=("none", "hang", "crash"), default="none")
    parser.add_argument("--at", type=int, default=20)
    args = parser.parse_args()
    leave_starter_if_asked()
    journal = Journal()
    trouble = Trouble(args.trouble, args.at)
    weights, step = [1.0] * WEIGHTS, 0
    resumed = trouble.taken(wt.resume_path(), journal)
    if resumed:
        weights, step = load(resumed)
    journal.note("begin", step)
    if args.shape == "helpers":
        daemonize(dict(os.environ))
        daemonize({})
        subprocess.Popen([sys.executable, "-S", "-c", HELPER], start_new_session=True)
    while step < args.steps:
        trouble.strike(step)
        weights = [0.9 * weight + (step * 7 + n) % 11 for n, weight in enumerate(weights)]
        time.sleep(args.step_s)
        step += 1
        wt.beat(step=step, total_steps=args.steps)
        journal.note("step", step)
        if step % 5 == 0:
            save_and_rename(path_of(step), partial(save, weights))
            journal.note("saved", step)
    journal.note("finished", step, f"{sum(weights):.9f}")
    print(f"finished step={step}", flush=True)


if __name__ == "__main__":
    main()
