"""One rank of a gloo job under srun: its number comes from Slurm, as many scripts do it.

--fault hang|receive|crash|die-in-save|eval and --rank say what happens to whom at --at, in the
first attempt only, which has no --resume.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

os.environ["RANK"] = os.environ["SLURM_PROCID"]
os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]

import torch
import torch.distributed as dist
from gloo_job import GlooJob, evaluate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1, help="-1: all of them")
    parser.add_argument("--at", type=int, default=25)
    parser.add_argument("--resume")
    args = parser.parse_args()
    job = GlooJob(args.resume)
    rank = job.rank
    print(f"rank {rank} attempt {os.environ.get('WTRAIN_ATTEMPT')} from {job.first}", flush=True)
    for step in range(job.first, args.steps):
        if args.rank in (rank, -1) and step == args.at and not args.resume:
            if args.fault == "hang":
                time.sleep(10_000)
            if args.fault == "receive":  # while the others are in all_reduce
                dist.recv(torch.zeros(8), src=0)
            if args.fault == "crash":
                raise SystemExit(3)
            if args.fault == "eval":
                evaluate(30.0)
        path = job.train_step(step)
        if path and args.fault == "die-in-save" and step >= args.at and not args.resume:
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    print(f"finished rank={rank} step={args.steps}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
