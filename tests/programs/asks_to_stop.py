"""A plain loop that asks should_stop(), then saves and ends; several ranks under torchrun agree."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from zoo import Training

import watchdog_train as wt


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--eval-s", type=float, help="evaluate so long when this file is there")
    parser.add_argument("--deaf", action="store_true", help="ask once, and never again")
    args = parser.parse_args()
    rank = os.environ.get("RANK", "0")
    distributed = "RANK" in os.environ
    training = Training(0.02, f"checkpoints-{rank}")
    if distributed:
        training.torch.distributed.init_process_group("gloo")
    training.resume(wt.resume_path())
    while training.step < args.steps:
        asked_again = not args.deaf or not training.step
        if asked_again and wt.should_stop():
            training.save()
            print(f"stopped step={training.step} rank={rank}", flush=True)
            break
        training.train_step()
        if distributed:
            training.torch.distributed.barrier()
        if args.eval_s and Path("evaluate").exists():
            with wt.phase("eval"):
                Path("evaluating").touch()
                until = time.monotonic() + args.eval_s
                while time.monotonic() < until:
                    training.torch.randn(200, 200).matmul(training.torch.randn(200, 200))
            Path("evaluate").unlink()
    if distributed:
        training.torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
