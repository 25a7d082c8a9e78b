"""The records that elastic.py trains on."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset


class RecordError(Exception):
    """A record that cannot be used."""


class Records(Dataset):
    """Rows of a table that was once a CSV file: numbers by the name of their column."""

    def __init__(self, size: int, damaged: int | None = None) -> None:
        self.rows = [{"value": index / size, "label": index % 2} for index in range(size)]
        if damaged is not None:
            del self.rows[damaged]["label"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.rows[index]
        try:
            label = float(row["label"])
        except KeyError as error:
            raise RecordError(f"record {index} of table-b is damaged") from error  # HERE:case-09
        return torch.full((8,), row["value"]), torch.tensor([label])
