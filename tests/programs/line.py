"""The smallest model that every framework can train, for programs that are about the framework."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
"""For a Trainer of Lightning."""


class Ones(Dataset):
    """Rows of ones."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(4), "labels": torch.ones(1)}


class Line(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.line = torch.nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.line(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def lightning_module(model: torch.nn.Module) -> Any:
    """A class: the model with one optimizer, for Lightning."""
    import lightning.pytorch as L  # noqa: N812

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module
