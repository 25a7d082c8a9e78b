"""Hang under torchrun: rank 1 leaves the common work and sleeps, the others wait in all_reduce.

Only in the first attempt, which has no --resume.
"""

from __future__ import annotations

import argparse
import time

import torch.distributed as dist
from gloo_job import GlooJob


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hang-at", type=int, default=25, help="-1: never")
    parser.add_argument("--resume")
    args = parser.parse_args()
    job = GlooJob(args.resume)
    rank = job.rank
    for step in range(job.first, args.steps):
        if rank == 1 and step == args.hang_at and not args.resume:
            time.sleep(10_000)
        job.train_step(step)
    dist.barrier()
    if rank == 0:
        print(f"finished step={args.steps}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
