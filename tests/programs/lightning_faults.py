"""Two ranks that Lightning starts itself (DDP over gloo); the first time one of them misbehaves.

It resumes as Lightning scripts do: not at all by itself; the trainer is left to the hook.
"""

from __future__ import annotations

import argparse
import io
import os
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rank_faults import CULPRIT, FAULTS, die
from zoo import once

AT = 25


class Model(LightningModule):
    """A linear model on numbers that are made on the spot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Planted(Callback):
    """The fault of one rank, in the middle of the third epoch."""

    def __init__(self, fault: str) -> None:
        self.fault = FAULTS[fault] if fault != "die-in-save" else None

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        mine = trainer.global_rank == CULPRIT and trainer.global_step == AT
        if mine and self.fault is not None and once("fault-planted"):
            self.fault()


class HalfWritten(TorchCheckpointIO):
    """Rank 0 dies when half of a checkpoint of the third epoch is written."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, **options: Any) -> None:
        if checkpoint["global_step"] > AT and once("fault-planted"):
            content = io.BytesIO()
            torch.save(checkpoint, content)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content.getvalue()[: len(content.getvalue()) // 2])
            die()
        super().save_checkpoint(checkpoint, path, **options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=("none", "sleep", "receive", "fail", "die", "die-in-save"))
    args = parser.parse_args()
    torch.manual_seed(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=6,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="output",
        plugins=[HalfWritten()] if args.fault == "die-in-save" else None,
        callbacks=[Planted(args.fault), ModelCheckpoint(dirpath="checkpoints", save_top_k=-1)],
    )
    data = torch.utils.data.DataLoader(torch.ones(40, 8), batch_size=2)
    trainer.fit(Model(), data)
    if trainer.global_rank == 0:
        print(f"finished step={trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
