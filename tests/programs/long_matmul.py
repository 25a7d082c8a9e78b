"""Healthy: single steps that compute for a long time without a sign from Python."""

from __future__ import annotations

import os
import time

import torch
from zoo import Training, ready

LONG_S = float(os.environ.get("LONG_S", "12"))


def compute(seconds: float) -> None:
    """One long step: matrices, and no line of Python that could beat."""
    until = time.monotonic() + seconds
    matrix = torch.randn(400, 400)
    while time.monotonic() < until:
        matrix = torch.nn.functional.normalize(matrix @ matrix)


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    compute(LONG_S)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
