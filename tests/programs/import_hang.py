"""Hang before the first step: reading from a fifo that nobody will ever write to."""

from __future__ import annotations

import os

from zoo import Training, once, ready


def main() -> None:
    training = Training(0.05)
    if once("hung-once"):
        os.mkfifo("weights.bin")
        ready()
        with open("weights.bin", "rb") as file:
            file.read()
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
