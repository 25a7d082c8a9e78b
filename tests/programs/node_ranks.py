"""One rank of a gloo job that torchrun has started on one of several nodes.

--fault hang|crash|eval and --rank say what happens to whom at --at, in the first attempt only,
which has no --resume. --step-s makes every step longer.
"""

from __future__ import annotations

import argparse
import os
import time

import torch.distributed as dist
from gloo_job import GlooJob, evaluate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--at", type=int, default=25)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--resume")
    args = parser.parse_args()
    job = GlooJob(args.resume)
    rank = job.rank
    for step in range(job.first, args.steps):
        if rank == args.rank and step == args.at and not args.resume:
            if args.fault == "hang":
                time.sleep(10_000)
            if args.fault == "crash":
                raise SystemExit(3)
            if args.fault == "eval":
                evaluate(30.0)
        time.sleep(args.step_s)
        job.train_step(step)
    dist.barrier()
    attempt = os.environ.get("WTRAIN_ATTEMPT")
    print(f"finished rank={rank} from={job.first} step={args.steps} attempt={attempt}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
