"""What programs with several ranks share: a model in DDP over gloo, its step, its checkpoints."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist


class GlooJob:
    """One rank; the model goes on from a checkpoint when there is one."""

    def __init__(self, resume: str | None, **meet: Any) -> None:
        dist.init_process_group("gloo", **meet)
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 1)
        self.parallel = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.parallel.parameters(), lr=1e-2)
        self.first = 0
        if resume:
            saved = torch.load(resume)
            self.model.load_state_dict(saved["model"])
            self.first = saved["step"]

    def train_step(self, step: int) -> str | None:
        """One step of a tenth of a second; the file, where rank 0 saves after it."""
        self.optimizer.zero_grad()
        self.parallel(torch.ones(2, 8) * step / 10).sum().backward()
        self.optimizer.step()
        time.sleep(0.1)
        if self.rank != 0 or (step + 1) % 10:
            return None
        path, content = self.checkpoint(step + 1)
        torch.save(content, path)
        return path

    def checkpoint(self, step: int) -> tuple[str, dict[str, Any]]:
        """Where to save it, and what to save."""
        os.makedirs("checkpoints", exist_ok=True)
        content = {"model": self.model.state_dict(), "step": step}
        return f"checkpoints/step-{step:06d}.pt", content


def evaluate(seconds: float) -> None:
    """Work that no other rank takes part in."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(20_000))
