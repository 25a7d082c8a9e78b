"""Healthy: a Trainer for NIGHT_S seconds with uneven steps, slow batches, evaluations and saves.

Steps take 20 ms to 6 s (a heavy tail), a batch now and then 12 s (slow storage), an evaluation
about every two minutes ends in a metric that waits for 45 s, and a checkpoint is saved after it.
"""

from __future__ import annotations

import os
import random
import sys
import time

import torch
from torch.utils.data import Dataset, get_worker_info
from transformers import Trainer, TrainerCallback, TrainingArguments

NIGHT_S = float(os.environ.get("NIGHT_S", "30"))
# The pauses grow with the night, so that a short one has every kind of them, too.
SCALE = min(1.0, NIGHT_S / 600.0)


class Rows(Dataset):
    """Random rows; some come from a slow storage."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if get_worker_info() is not None and random.random() < 0.001:
            time.sleep(12.0 * SCALE)
        return {"x": torch.rand(32), "labels": torch.rand(1)}


class Few(Rows):
    """For an evaluation."""

    def __len__(self) -> int:
        return 256


class Model(torch.nn.Module):
    """Small, but with a checkpoint that takes a while to write."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(32, 1800), torch.nn.ReLU(), torch.nn.Linear(1800, 1800)
        )
        self.head = torch.nn.Linear(1800, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            time.sleep(min(6.0, 0.02 * random.paretovariate(0.9)))
        out = self.head(self.layers(x))
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


class Clock(TrainerCallback):
    """An evaluation and a save every two minutes, and the end in the morning."""

    def __init__(self) -> None:
        self.end = time.monotonic() + NIGHT_S
        self.due = time.monotonic() + 120.0 * SCALE
        self.saves = 0

    def on_save(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.saves += 1

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        now = time.monotonic()
        control.should_training_stop = now >= self.end
        if now >= self.due:
            self.due = now + 120.0 * SCALE
            control.should_evaluate = control.should_save = True
        return control


def metrics(_: object) -> dict[str, float]:
    """A judge far away."""
    time.sleep(45.0 * SCALE)
    return {"judged": 1.0}


def main() -> None:
    random.seed(7)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "night",
        max_steps=1_000_000,
        per_device_train_batch_size=8,
        dataloader_num_workers=2,
        logging_steps=50,
        save_strategy="no",
        eval_strategy="no",
        save_total_limit=2,
        report_to=[],
        disable_tqdm=not sys.stderr.isatty(),
        use_cpu=True,
    )
    clock = Clock()
    trainer = Trainer(
        Model(),
        arguments,
        train_dataset=Rows(),
        eval_dataset=Few(),
        compute_metrics=metrics,
        callbacks=[clock],
    )
    trainer.train()
    print(f"finished at step {trainer.state.global_step} after {clock.saves} saves", flush=True)


if __name__ == "__main__":
    main()
