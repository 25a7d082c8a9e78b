"""What the programs of the zoo share: saying "ready", acting once, and a training of a few floats.

Programs are ordinary scripts: neither they nor this module import anything of watchdog_train.
"""

from __future__ import annotations

import os
import time


def ready() -> None:
    """Tells the test that the situation which the program is about has been reached."""
    descriptor = os.environ.pop("READY_FD", None)
    if descriptor:
        os.write(int(descriptor), b"ready\n")
        os.close(int(descriptor))


def once(name: str) -> bool:
    """True the first time in this directory; a later attempt of the same training gets False."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Training:
    """A linear model whose every step is a function of the step number, so runs can be compared."""

    def __init__(self, step_s: float = 0.02, out: str = "checkpoints") -> None:
        import torch

        self.torch = torch
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step_s = step_s
        self.out = out
        self.step = 0

    def train_step(self, batch=None) -> None:
        """One optimizer step on `batch`, or on a batch made from the step number."""
        torch = self.torch
        if batch is None:
            batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(self.step))
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        time.sleep(self.step_s)

    def train(self, until: int, save_every: int = 5) -> None:
        """Steps up to `until`, saving every few."""
        while self.step < until:
            self.train_step()
            if self.step % save_every == 0:
                self.save()

    def save(self) -> None:
        os.makedirs(self.out, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        self.torch.save(state, self.path(self.step))

    def save_half(self, step: int) -> None:
        """What a kill in the middle of a save leaves: the first half of a newer checkpoint."""
        with open(self.path(self.step - self.step % 5), "rb") as whole:
            data = whole.read()
        with open(self.path(step), "wb") as half:
            half.write(data[: len(data) // 2])

    def path(self, step: int) -> str:
        return os.path.join(self.out, f"step-{step:06d}.pt")

    def resume(self, path: str | None) -> None:
        """From the given file, or from nothing."""
        if not path:
            return
        state = self.torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        print(f"resumed from {path} at step {self.step}", flush=True)

    def finish(self) -> None:
        """Says where it ended, and a number that a different training would not have."""
        checksum = sum(weights.double().sum().item() for weights in self.model.parameters())
        print(f"finished step={self.step} checksum={checksum:.9f}", flush=True)
