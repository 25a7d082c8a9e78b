"""Healthy: a long evaluation between training steps, batches without a gradient."""

from __future__ import annotations

import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from zoo import Training, ready

LONG_S = float(os.environ.get("LONG_S", "12"))


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    training.model.eval()
    until = time.monotonic() + LONG_S
    matrix = torch.randn(300, 300)
    with torch.no_grad():
        while time.monotonic() < until:
            for (batch,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8):
                training.model(batch)
                for _ in range(200):
                    matrix = torch.nn.functional.normalize(matrix @ matrix)
    training.model.train()
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
