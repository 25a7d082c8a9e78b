"""Hang under torchrun: rank 1 leaves the common work and sleeps, the others wait in all_reduce.

Only in the first attempt, which has no --resume.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hang-at", type=int, default=25, help="-1: never")
    parser.add_argument("--resume")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-2)
    first = 0
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    for step in range(first, args.steps):
        if rank == 1 and step == args.hang_at and not args.resume:
            time.sleep(10_000)
        optimizer.zero_grad()
        parallel(torch.ones(2, 8) * step / 10).sum().backward()
        optimizer.step()
        time.sleep(0.1)
        if rank == 0 and (step + 1) % 10 == 0:
            os.makedirs("checkpoints", exist_ok=True)
            content = {"model": model.state_dict(), "step": step + 1}
            torch.save(content, f"checkpoints/step-{step + 1:06d}.pt")
    dist.barrier()
    if rank == 0:
        print(f"finished step={args.steps}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
