"""Hang: a DataLoader worker sleeps for ever at one sample, whatever its start method."""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from zoo import Training, ready


class Numbers(Dataset):
    def __init__(self, first: int, last: int, hang_at: int) -> None:
        self.first, self.last, self.hang_at = first, last, hang_at

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> torch.Tensor:
        number = self.first + index
        if get_worker_info() is not None and number == self.hang_at * 4:
            time.sleep(1e6)
        return torch.randn(8, generator=torch.Generator().manual_seed(number))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hang-at", type=int, default=20, help="-1: never")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", choices=("fork", "spawn", "forkserver"), default="fork")
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--resume")
    args = parser.parse_args()
    training = Training(args.step_s)
    training.resume(args.resume)
    data = Numbers(training.step * 4, args.steps * 4, args.hang_at)
    loader = DataLoader(
        data,
        batch_size=4,
        num_workers=args.workers,
        multiprocessing_context=args.method if args.workers else None,
    )
    for batch in loader:
        training.train_step(batch)
        if training.step % 5 == 0:
            training.save()
        if training.step == args.hang_at:
            ready()
    training.finish()


if __name__ == "__main__":
    main()
