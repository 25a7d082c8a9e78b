"""Every process of it hangs after 25 s of steps, and saves by itself only at the end.

hangs_before_it_saves.py trainer|lightning
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 400
BEGAN = time.monotonic()
begun: list[float] = []


class Rows(Dataset):
    """Enough for all steps."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), index / STEPS), "labels": torch.ones(1)}


class Model(torch.nn.Module):
    """A line, whose step takes a while, and which is stuck at last."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        begun.append(begun[0] if begun else time.monotonic())
        while time.monotonic() - begun[0] > 25.0:
            time.sleep(60)
        time.sleep(0.1)
        out = self.line(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def trainer() -> int:
    from transformers import Trainer, TrainingArguments

    job = Trainer(
        model=Model(),
        args=TrainingArguments(
            output_dir="trainer-output", max_steps=STEPS, per_device_train_batch_size=1,
            save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
        ),
        train_dataset=Rows(),
    )  # fmt: skip
    job.train()
    return job.state.global_step


def lightning() -> int:
    import lightning.pytorch as L  # noqa: N812

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    job = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir="lightning-output",
    )  # fmt: skip
    job.fit(Module(), DataLoader(Rows(), 1))
    return job.global_step


if __name__ == "__main__":
    print(f"finished step={globals()[sys.argv[1]]()}", flush=True)
