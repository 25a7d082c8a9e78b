"""A plain PyTorch loop that can go on from a checkpoint; it knows nothing of watchdog_train.

wtrain run --resume-arg "--resume {checkpoint}" -- python examples/plain_loop.py
"""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sums(Dataset):
    """Vectors and their sums; sample N is the same in every run."""

    def __init__(self, first, last):
        self.first, self.last = first, last

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        vector = torch.randn(16, generator=generator)
        return vector, vector.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--out", default="plain-output")
    parser.add_argument("--resume", help="checkpoint to go on from")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if options.resume:
        state = torch.load(options.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"going on from step {step}", flush=True)

    os.makedirs(options.out, exist_ok=True)
    batch_size = 8
    data = Sums(step * batch_size, options.steps * batch_size)
    for vectors, sums in DataLoader(data, batch_size=batch_size, num_workers=2):
        loss = nn.functional.mse_loss(model(vectors).squeeze(1), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % options.save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, os.path.join(options.out, f"step-{step}.pt"))
    print(f"finished step={step}", flush=True)


if __name__ == "__main__":
    main()
