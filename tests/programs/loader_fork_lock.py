"""Hang: DataLoader workers deadlock on a lock that a thread held while they were forked.

It happens only with workers, so that no workers are a true cure. Every batch is a function of its
number, so that a resumed training ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset
from zoo import Training, ready

lock = threading.Lock()


class Numbers(Dataset):
    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> torch.Tensor:
        with lock:
            generator = torch.Generator().manual_seed(self.first + index)
        return torch.randn(8, generator=generator)


def hold(held: threading.Event) -> None:
    with lock:
        held.set()
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hang-at", type=int, default=20, help="-1: never")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--half", type=int, help="leave half a checkpoint of this step before it")
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--resume")
    args = parser.parse_args()
    training = Training(args.step_s, args.out)
    training.resume(args.resume)
    cuts = [cut for cut in (args.hang_at, args.steps) if training.step < cut]
    for cut in cuts:
        planted = training.step == args.hang_at
        if planted:
            held = threading.Event()
            threading.Thread(target=hold, args=(held,), daemon=True).start()
            held.wait()
            if args.half and args.workers:
                training.save_half(args.half)
            ready()
        data = Numbers(training.step * 4, cut * 4)
        for batch in DataLoader(data, batch_size=4, num_workers=args.workers):
            training.train_step(batch)
            if training.step % 5 == 0:
                training.save()
    training.finish()


if __name__ == "__main__":
    main()
