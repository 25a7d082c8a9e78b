"""A loop with Accelerator and save_state, for one process or several; at first it hangs.

Started by `accelerate launch` or alone. The first attempt is the one without --resume.
"""

from __future__ import annotations

import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


class Examples(torch.utils.data.Dataset):
    """Eight equal numbers each."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index / 1000)


class Counter:
    """The step, as a part of what save_state saves."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hang-at", type=int, default=15, help="step of the last rank; -1: never")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume")
    args = parser.parse_args()
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Examples(), batch_size=2, num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    if args.resume:
        accelerator.load_state(args.resume)
        print(f"rank {accelerator.process_index} resumed at step {counter.step}", flush=True)
    last = accelerator.process_index == accelerator.num_processes - 1
    for batch in loader:
        if counter.step == args.steps:
            break
        if last and counter.step == args.hang_at and not args.resume:
            time.sleep(10_000)
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        counter.step += 1
        time.sleep(0.05)
        if counter.step % 10 == 0:
            accelerator.save_state(f"checkpoints/step_{counter.step}")
    accelerator.wait_for_everyone()
    total = accelerator.gather(torch.ones(1)).sum().item()
    accelerator.print(f"finished step={counter.step} ranks={total:.0f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
