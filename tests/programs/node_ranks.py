"""One rank of a gloo job that torchrun has started on one of several nodes.

--fault hang|crash|eval and --rank say what happens to whom at --at, in the first attempt only.
An evaluation lasts so many soft budgets as --eval-budgets says, whatever the machine has made of
the steps before it. --step-s makes every step longer. It says of its beginning, its saves, its
fault and its end what a judge needs who was not there.
"""

from __future__ import annotations

import argparse
import os
import time

import torch.distributed as dist
from gloo_job import GlooJob, evaluate

FLOOR_S, FACTOR, POLL_S = 3.0, 2.5, 0.25
"""Of the settings of tests: least soft budget, default learnt_factor, time between two looks."""


def most_soft_s(took_s: list[float]) -> float:
    """The longest soft budget that wtrain can have learnt from steps of this length.

    The single longest of eight or more never counts, see robust_quantile().
    """
    ordered = sorted(took_s)
    longest_s = ordered[-2] if len(ordered) >= 8 else 2 * ordered[-1]
    return max(FLOOR_S, FACTOR * (longest_s + POLL_S))


def say(text: str) -> None:
    """A line in one write: torchrun's Python does not buffer, and another rank writes, too."""
    print(f"{text}\n", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--at", type=int, default=25)
    parser.add_argument("--eval-budgets", type=float, default=10.0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--resume")
    args = parser.parse_args()
    job = GlooJob(args.resume)
    rank, attempt = job.rank, os.environ.get("WTRAIN_ATTEMPT")
    say(f"began rank={rank} from={job.first} attempt={attempt}")
    took_s: list[float] = []
    for step in range(job.first, args.steps):
        if (rank, step, attempt) == (args.rank, args.at, "1") and args.fault != "none":
            say(f"fault {args.fault} rank={rank} step={step} t={time.time():.3f}")
            if args.fault == "hang":
                time.sleep(10_000)
            if args.fault == "crash":
                raise SystemExit(3)
            if args.fault == "eval":
                soft_s = most_soft_s(took_s)
                began = time.monotonic()
                evaluate(args.eval_budgets * soft_s)
                budgets = (time.monotonic() - began) / soft_s
                say(f"evaluated budgets={budgets:.2f} soft_s={soft_s:.2f}")
        began = time.monotonic()
        time.sleep(args.step_s)
        if job.train_step(step) is not None:
            say(f"saved step={step + 1} attempt={attempt}")
        took_s.append(time.monotonic() - began)
    dist.barrier()
    weights = sum(float(one.detach().double().sum()) for one in job.model.parameters())
    end = f"step={args.steps} attempt={attempt} weights={weights!r}"
    say(f"finished rank={rank} from={job.first} {end}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
