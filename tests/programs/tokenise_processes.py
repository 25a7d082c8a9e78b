"""Healthy: text is tokenised by a pool of processes that live for a short time each."""

from __future__ import annotations

import multiprocessing
import os
import time

from zoo import Training, ready

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog")
LONG_S = float(os.environ.get("LONG_S", "12"))


def tokenise(seed: int) -> int:
    until = time.monotonic() + 0.2
    count = seed
    while time.monotonic() < until:
        count += sum(map(ord, WORDS[count % len(WORDS)]))
    return count


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    until = time.monotonic() + LONG_S
    done = 0
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        while time.monotonic() < until:
            done += len(pool.map(tokenise, range(4), chunksize=1))
    print(f"tokenised {done > 0}", flush=True)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
