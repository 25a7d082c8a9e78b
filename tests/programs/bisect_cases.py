"""Trainings that hang under one condition, or fail; each ends with "finished".

bisect_cases.py examples|workers|ranks|exception
"""

from __future__ import annotations

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()
CASE = sys.argv[1]


class Rows(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        with LOCK:
            if CASE == "examples" and index == 99:
                threading.Event().wait()  # the hundredth example
            if CASE == "exception" and index == 1:
                raise ValueError("a broken example")
            return torch.ones(4)


def main() -> None:
    rank = 0
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    loader = DataLoader(Rows(), 2, num_workers=2 if CASE == "workers" else 0)
    with LOCK if CASE == "workers" else threading.Lock():  # held while workers are forked
        batches = iter(loader)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        if CASE == "ranks" and step == 0 and rank == 0 and dist.get_world_size() > 1:
            dist.all_reduce(torch.ones(1))  # the other ranks do not take part
    if CASE == "ranks":
        dist.barrier()
    if CASE == "workers":
        torch.save(model.state_dict(), "model.pt")
    print("finished", flush=True)


if __name__ == "__main__":
    main()
