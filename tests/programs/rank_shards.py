"""Ranks without a process group: each trains on its shard, and every ten steps rank 0 collects.

Started by anything that sets RANK and WORLD_SIZE. In the first attempt, the one without --resume,
rank 1 may misbehave; nothing but its part is missing then, and nothing tells rank 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import torch


def collect(step: int, world: int) -> None:
    """Wait for the parts of all ranks."""
    while not all(os.path.exists(f"part-{rank}-{step}") for rank in range(world)):
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=("none", "fail", "die", "leave"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--at", type=int, default=25, help="step of the fault")
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--merge-s", type=float, default=0.0)
    parser.add_argument("--resume")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    first = 0
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    fault = args.fault if rank == 1 and not args.resume else "none"
    for step in range(first, args.steps):
        if step == args.at:
            if fault == "fail":
                raise RuntimeError("planted failure")
            if fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "leave":
                sys.exit(0)
        optimizer.zero_grad()
        model(torch.ones(2, 8) * step / 10).sum().backward()
        optimizer.step()
        time.sleep(args.step_s)
        if (step + 1) % 10 == 0:
            with open(f"part-{rank}-{step + 1}", "w") as part:
                part.write(str(model.bias.item()))
            if rank == 0:
                collect(step + 1, world)
                os.makedirs("checkpoints", exist_ok=True)
                content = {"model": model.state_dict(), "step": step + 1}
                torch.save(content, f"checkpoints/step-{step + 1:06d}.pt")
    if rank == 0:
        time.sleep(args.merge_s)  # an upload that waits for its server
        print(f"finished step={args.steps}", flush=True)


if __name__ == "__main__":
    main()
