"""Workers deadlock once; and without workers this training cannot begin at all."""

from __future__ import annotations

import threading

import torch
from torch.utils.data import DataLoader, Dataset
from zoo import Training, once

LOCK = threading.Lock()


class Rows(Dataset):
    """A lock that is held while workers are forked stays held in them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        with LOCK:
            return torch.ones(8)


if __name__ == "__main__":
    training = Training()
    loader = DataLoader(Rows(), 4, num_workers=1)
    if loader.num_workers == 0:
        raise SystemExit("this training needs its workers")
    for batch in loader:
        training.train_step(batch)
    if once("planted"):
        with LOCK:
            batches = iter(loader)
    else:
        batches = iter(loader)
    for batch in batches:
        training.train_step(batch)
    training.finish()
