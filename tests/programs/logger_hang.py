"""Hang before the first step, inside wandb.init of one rank; the next attempt goes through.

The others wait for it at a barrier, as ranks do. Alone or under torchrun.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from zoo import Training, once

sys.path.insert(0, str(Path(__file__).resolve().parent / "fakes"))

import wandb


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-rank", type=int, default=0)
    parser.add_argument("--resume-from", default=None, help="a checkpoint")
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    hangs = rank == options.hang_rank and once("hung-once")
    wandb.init(answer=not hangs)
    training = Training(0.02, out=f"checkpoints-{rank}")
    if "RANK" in os.environ:
        import torch.distributed

        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
    training.resume(options.resume_from)
    training.train(20)
    training.finish()


if __name__ == "__main__":
    main()
