"""Train a small network on synthetic pictures: an ordinary PyTorch script with an ordinary bug.

It knows nothing of watchdog_train. The bug is real and common: a thread of the main process holds
a lock (here it refreshes a cache of augmentation parameters) at the moment when the DataLoader
forks its workers. The workers inherit the lock in its locked state, but not the thread that would
unlock it, so they wait for ever, and the main process waits for them.

    python train.py [--resume checkpoints/step-000080.pt]
"""

import argparse
import os
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 160
STEPS_PER_EPOCH = 40
SAVE_EVERY = 20
BATCH = 16

cache_lock = threading.Lock()
cache = {"scale": 1.0}


def refresh_cache(started):
    """Reads new augmentation parameters from a slow disk, under the lock."""
    with cache_lock:
        started.set()
        time.sleep(0.5)
        cache["scale"] = 1.0


class Pictures(Dataset):
    """Pictures that are a function of their index, so that every run sees the same data."""

    def __init__(self, first, last):
        self.first, self.last = first, last

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, index):
        number = self.first + index
        generator = torch.Generator().manual_seed(number)
        picture = torch.randn(1, 12, 12, generator=generator)
        with cache_lock:
            picture = picture * cache["scale"]
        return picture, int(picture.mean() > 0)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 10 * 10, 32),
        nn.ReLU(),
        nn.Linear(32, 2),
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def save(model, optimizer, step):
    os.makedirs("checkpoints", exist_ok=True)
    path = os.path.join("checkpoints", f"step-{step:06d}.pt")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path
    )


def train_epoch(epoch, step, model, optimizer):
    last = (epoch + 1) * STEPS_PER_EPOCH
    loader = DataLoader(Pictures(step * BATCH, last * BATCH), batch_size=BATCH, num_workers=2)
    if epoch == 2:
        started = threading.Event()
        threading.Thread(target=refresh_cache, args=(started,), daemon=True).start()
        started.wait()
    for pictures, labels in loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.05)  # a bigger model would take this long
        if step % 10 == 0:
            print(f"epoch {epoch + 1}  step {step}/{STEPS}  loss {loss.item():.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            save(model, optimizer, step)
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", help="a checkpoint to go on from")
    arguments = parser.parse_args()
    model, optimizer = build()
    step = 0
    if arguments.resume:
        state = torch.load(arguments.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"going on from step {step} of {arguments.resume}", flush=True)
    while step < STEPS:
        step = train_epoch(step // STEPS_PER_EPOCH, step, model, optimizer)
    print(f"training finished at step {step}", flush=True)


if __name__ == "__main__":
    main()
