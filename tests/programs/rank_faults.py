"""Two or more ranks that train together over gloo; in the first attempt one of them misbehaves.

Started by torchrun or any launcher that sets RANK and WORLD_SIZE; with --spawn N by its own
torch.multiprocessing.spawn. The first attempt is the one without --resume.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gloo_job import GlooJob

CULPRIT = 1


class Examples(torch.utils.data.Dataset):
    """Eight numbers each; `slow` is the index whose loading never ends."""

    def __init__(self, slow: int) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.slow:
            time.sleep(10_000)
        return torch.full((8,), index / 1000)


def sleep() -> None:
    time.sleep(10_000)


def receive() -> None:
    """While the others are in all_reduce."""
    dist.recv(torch.zeros(8), src=0)


def hold_gil() -> None:
    """Lock one pthread mutex twice, in C, without letting go of the interpreter."""
    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def fail() -> None:
    raise RuntimeError("planted failure")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "sleep": sleep,
    "receive": receive,
    "hold-gil": hold_gil,
    "fail": fail,
    "die": die,
    "leave": None,  # the loop, as with an uneven shard: on to the last barrier
    "exit": None,  # leave, and end well
    "never-come": None,  # fail before the process group is there
    "die-in-save": None,  # rank 0, when half of the file is written
    "hang-in-save": None,  # the same
    "worker": None,  # one of its DataLoader workers does not come back
    "none": None,
}


class HalfFile(io.FileIO):
    """Storage on which a save gets no further than half of its bytes."""

    def __init__(self, path: str, end: Callable[[], None]) -> None:
        super().__init__(path, "w")
        self.end = end

    def write(self, data: Any) -> int:
        written = super().write(bytes(data)[: len(data) // 2])
        if len(data) > 100:
            self.end()
        return super().write(bytes(data)[written:]) + written


class SlowFile(io.FileIO):
    """Storage that takes its time, once."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(path, "w")
        self.seconds = seconds

    def write(self, data: Any) -> int:
        time.sleep(self.seconds)
        self.seconds = 0.0
        return super().write(data)


def save(job: GlooJob, step: int, fault: str) -> None:
    path, content = job.checkpoint(step)
    if fault in ("die-in-save", "hang-in-save"):
        with HalfFile(path, die if fault == "die-in-save" else sleep) as file:
            torch.save(content, file)
    torch.save(content, path)


def train(args: argparse.Namespace) -> None:
    """One rank, from its start to its end."""
    rank = int(os.environ.get("RANK", "-1")) if args.rank is None else args.rank
    fault = "none" if args.resume else args.fault
    mine = fault if rank == CULPRIT else "none"
    if mine == "never-come":
        fail()
    meet = {"init_method": args.meet, "rank": args.rank, "world_size": args.spawn}
    job = GlooJob(args.resume, **(meet if args.spawn else {}))
    slow = 2 * (args.at - job.first) if mine == "worker" else -1
    loader = torch.utils.data.DataLoader(Examples(slow), batch_size=2, num_workers=args.workers)
    batches = iter(loader)
    for step in range(job.first, args.steps):
        if step == args.at:
            if mine in ("leave", "exit"):
                break
            if FAULTS[mine] is not None:
                FAULTS[mine]()
        job.optimizer.zero_grad()
        job.parallel(next(batches)).sum().backward()
        job.optimizer.step()
        time.sleep(args.step_s)
        if rank == 0 and (step + 1) % 10 == 0:
            save(job, step + 1, fault if step + 1 > args.at else "none")
    if mine == "exit":
        sys.exit(0)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        with SlowFile("last.pt", args.last_save_s) as file:
            torch.save(job.model.state_dict(), file)
        print(f"finished step={args.steps}", flush=True)


def spawned(rank: int, args: argparse.Namespace) -> None:
    args.rank = rank
    train(args)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--at", type=int, default=25, help="step of the fault")
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--last-save-s", type=float, default=0.0, help="of rank 0, at the end")
    parser.add_argument("--workers", type=int, default=0, help="of each rank's DataLoader")
    parser.add_argument("--spawn", type=int, default=0, help="ranks to start; 0: a launcher has")
    parser.add_argument("--resume")
    args = parser.parse_args()
    args.rank = args.meet = None
    if args.spawn:
        # A store in a file needs no port, and a new name for each attempt no cleaning up.
        args.meet = f"file://{os.path.abspath(f'.meet-{os.getpid()}')}"
        mp.spawn(spawned, args=(args,), nprocs=args.spawn)
    else:
        train(args)


if __name__ == "__main__":
    main()
