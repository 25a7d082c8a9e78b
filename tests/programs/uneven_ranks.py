"""Two ranks in DDP over gloo, one of which is slow: it waits for its data, or it computes more."""

from __future__ import annotations

import argparse
import time

import torch
from gloo_job import GlooJob

SLOW_RANK = 1


class Examples(torch.utils.data.Dataset):
    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return torch.ones(8)


def compute(seconds: float) -> None:
    """For so much time of a CPU, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("slow", choices=("data", "cpu"))
    args = parser.parse_args()
    job = GlooJob(None)
    slow_s = 0.15 if job.rank == SLOW_RANK else 0.0
    loader = torch.utils.data.DataLoader(Examples(slow_s if args.slow == "data" else 0.0))
    for batch in loader:
        if args.slow == "cpu":
            compute(slow_s)
        job.optimizer.zero_grad()
        job.parallel(batch).sum().backward()
        job.optimizer.step()


if __name__ == "__main__":
    main()
