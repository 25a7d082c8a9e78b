"""Trains with torch in one of several shapes, in trouble once if asked to, and keeps a journal."""

from __future__ import annotations

import argparse
import os
import time

from chaos_journal import Journal, Trouble, file_of, idle_if_asked, save_and_rename

idle_if_asked()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gloo_job import GlooJob  # noqa: E402
from overwrites_in_place import OneFile  # noqa: E402
from torch.utils.data import DataLoader, Dataset, get_worker_info  # noqa: E402
from zoo import Training  # noqa: E402


class Renamed(Training):
    """Every save has another name until it is whole."""

    at = ""

    def save(self) -> None:
        save_and_rename(super().path(self.step), self.save_at)

    def save_at(self, path: str) -> None:
        self.at = path
        super().save()

    def path(self, step: int) -> str:
        return self.at

    def resume(self, path: str | None) -> None:
        super().resume(file_of(path) if path else None)


class Numbers(Dataset):
    """Every sample is a function of its number; a worker may get stuck at one of them."""

    def __init__(self, first: int, last: int, trouble: Trouble) -> None:
        self.first, self.last, self.trouble = first, last, trouble

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> torch.Tensor:
        number = self.first + index
        if get_worker_info() is not None:
            self.trouble.strike(number // 4)
        return torch.randn(8, generator=torch.Generator().manual_seed(number))


def train(args: argparse.Namespace, journal: Journal) -> None:
    """One process, with or without workers."""
    kinds = {"CHAOS_ONE_FILE": OneFile, "CHAOS_RENAME": Renamed}
    kind = next((kinds[name] for name in kinds if name in os.environ), Training)
    training = kind(args.step_s)
    trouble = Trouble(args.trouble, args.at)
    training.resume(trouble.taken(args.resume, journal))
    journal.note("begin", training.step)
    workers = args.shape in ("fork", "spawn")
    data = Numbers(training.step * 4, args.steps * 4, trouble)
    loader = DataLoader(
        data,
        batch_size=4,
        num_workers=2 if workers else 0,
        multiprocessing_context=args.shape if workers else None,
    )
    for batch in loader:
        if not workers:
            trouble.strike(training.step)
        training.train_step(batch)
        journal.note("step", training.step)
        if training.step % 5 == 0:
            training.save()
            journal.note("saved", training.step)
    checksum = sum(weights.double().sum().item() for weights in training.model.parameters())
    journal.note("finished", training.step, f"{checksum:.9f}")
    training.finish()


def train_ranks(args: argparse.Namespace, journal: Journal) -> None:
    """A rank of several under torchrun: rank 1 is the one that gets into trouble."""
    job = GlooJob(args.resume)
    journal.note("begin", job.first)
    trouble = Trouble(args.trouble, args.at)
    for step in range(job.first, args.steps):
        if dist.get_rank() == 1:
            trouble.strike(step)
        job.optimizer.zero_grad()
        job.parallel(torch.ones(2, 8) * (step + 1 + dist.get_rank()) / 50).sum().backward()
        job.optimizer.step()
        time.sleep(args.step_s)
        journal.note("step", step + 1)
        if dist.get_rank() == 0 and (step + 1) % 5 == 0:
            path, content = job.checkpoint(step + 1)
            torch.save(content, path)
            journal.note("saved", step + 1)
    dist.barrier()
    checksum = sum(weights.double().sum().item() for weights in job.model.parameters())
    journal.note("finished", args.steps, f"{checksum:.9f}")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=("loop", "fork", "spawn", "ranks"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--trouble", choices=("none", "hang", "crash"), default="none")
    parser.add_argument("--at", type=int, default=20)
    parser.add_argument("--resume")
    args = parser.parse_args()
    torch.set_num_threads(1)
    (train_ranks if args.shape == "ranks" else train)(args, Journal())


if __name__ == "__main__":
    main()
