"""Hangs in a worker until it gets its data without workers, from a timeout, and by files.

What the diagnosis of a stuck worker names, in this order; the training needs the last of them.
"""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset
from zoo import Training


class Rows(Dataset):
    """Hangs in a worker, and later in the main process."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        while index == 20 and torch.multiprocessing.get_sharing_strategy() != "file_system":
            time.sleep(60)
        return torch.ones(8)


if __name__ == "__main__":
    training = Training()
    for batch in DataLoader(Rows(), 4, num_workers=1, worker_init_fn=print):
        training.train_step(batch)
    training.finish()
