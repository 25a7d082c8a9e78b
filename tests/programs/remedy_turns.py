"""Trainings of which the second or third remedy is the right one: remedy_turns.py third|worse.

third: hangs in a worker until it gets its data without workers, from a timeout, and by files: what
the diagnosis of a stuck worker names, in this order; it needs the last of them.
worse: workers deadlock once; and without workers this training cannot begin at all.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset
from zoo import Training, once

LOCK = threading.Lock()
KIND = sys.argv[1]


class Rows(Dataset):
    """A lock that is held while workers are forked stays held in them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        while KIND == "third" and index == 20 and self.shares_memory():
            time.sleep(60)
        with LOCK:
            return torch.ones(8)

    @staticmethod
    def shares_memory() -> bool:
        return torch.multiprocessing.get_sharing_strategy() != "file_system"


if __name__ == "__main__":
    training = Training()
    init = print if KIND == "third" else None
    loader = DataLoader(Rows(), 4, num_workers=1, worker_init_fn=init)
    if KIND == "worse":
        if loader.num_workers == 0:
            raise SystemExit("this training needs its workers")
        for batch in loader:
            training.train_step(batch)
    with LOCK if KIND == "worse" and once("planted") else contextlib.nullcontext():
        batches = iter(loader)
    for batch in batches:
        training.train_step(batch)
    training.finish()
