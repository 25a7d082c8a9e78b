"""Trains on two processes under torchrun, with a snapshot to resume from after a failure."""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from records import Records
from told import note, note_start, planted
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class Snapshots(threading.Thread):
    """Writes the newest weights from a thread, so that the training need not wait for the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="snapshots", daemon=True)
        self.path = path
        self.weights_lock, self.disk_lock = threading.Lock(), threading.Lock()
        self.wanted, self.writing = threading.Event(), threading.Event()
        self.state: dict | None = None

    def run(self) -> None:
        while True:
            self.wanted.wait()
            self.wanted.clear()
            self.write()

    def write(self) -> None:
        with self.disk_lock:
            self.writing.set()
            with self.weights_lock:  # HERE:case-07
                state = self.state
            torch.save(state, self.path.with_suffix(".part"))
            self.path.with_suffix(".part").replace(self.path)

    def update(self, state: dict) -> None:
        with self.weights_lock:
            self.state = state
            self.wanted.set()
            if planted("old snapshot") and state["epoch"] == 1:
                self.writing.clear()
                self.writing.wait(5)
                self.drop_old()

    def drop_old(self) -> None:
        with self.disk_lock:  # HERE:case-07-b
            self.path.with_suffix(".old").unlink(missing_ok=True)


class Trainer:
    def __init__(self, model: torch.nn.Module, data: DataLoader, path: Path, pause: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.data, self.pause, self.first = data, pause, 0
        if path.exists():
            state = torch.load(path)
            model.load_state_dict(state["model"])
            self.first = state["epoch"] + 1
            print(f"rank {self.rank} resumes at epoch {self.first}", flush=True)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.snapshots = Snapshots(path)
        if self.rank == 0:
            self.snapshots.start()

    def run_batch(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(source), target)
        loss.backward()  # HERE:case-08-b
        self.optimizer.step()
        time.sleep(self.pause)

    def calibrate(self) -> float:
        """The spread of the outputs for noise, averaged over the ranks."""
        rounds = 50
        noise = torch.randn(256, 256)
        if planted("calibration of rank 1") and self.rank == 1:
            rounds = 20_000
            note("rank-1", os.getpid())
        total = sum(float((noise @ noise).std()) for _ in range(rounds))  # HERE:case-06
        mean = torch.tensor([total / rounds])
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()

    def run_epoch(self, epoch: int) -> None:
        for source, target in self.data:
            self.run_batch(source, target)
        spread = self.calibrate()
        if self.rank == 0:
            print(f"epoch {epoch}: spread {spread:.3f}", flush=True)
            self.snapshots.update({"epoch": epoch, "model": self.model.module.state_dict()})
            if planted("barrier of one rank"):
                dist.barrier()  # HERE:case-08

    def train(self, epochs: int) -> None:
        for epoch in range(self.first, epochs):
            self.data.sampler.set_epoch(epoch)
            self.run_epoch(epoch)


def main() -> None:
    note_start()
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    records = Records(320, damaged=203 if planted("damaged record") else None)
    sampler = DistributedSampler(records, shuffle=False)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    loader = DataLoader(records, batch_size=4, sampler=sampler)
    Trainer(model, loader, args.snapshot, args.pause).train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
