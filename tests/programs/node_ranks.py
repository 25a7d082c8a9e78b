"""One rank of a gloo job that torchrun has started on one of several nodes.

--fault hang|crash|eval and --rank say what happens to whom at --at, in the first attempt only,
which has no --resume.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist


def evaluate(seconds: float) -> None:
    """Work that no other rank takes part in."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(20_000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--at", type=int, default=25)
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
        if rank == args.rank and step == args.at and not args.resume:
            if args.fault == "hang":
                time.sleep(10_000)
            if args.fault == "crash":
                raise SystemExit(3)
            if args.fault == "eval":
                evaluate(30.0)
        optimizer.zero_grad()
        parallel(torch.ones(2, 8) * step / 10).sum().backward()
        optimizer.step()
        time.sleep(0.1)
        if rank == 0 and (step + 1) % 10 == 0:
            os.makedirs("checkpoints", exist_ok=True)
            content = {"model": model.state_dict(), "step": step + 1}
            torch.save(content, f"checkpoints/step-{step + 1:06d}.pt")
    dist.barrier()
    attempt = os.environ.get("WTRAIN_ATTEMPT")
    print(f"finished rank={rank} from={first} step={args.steps} attempt={attempt}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
