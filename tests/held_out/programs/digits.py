"""Trains a small classifier of digits with Lightning, from shards on disk."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import lightning
import torch
from told import note, note_start
from torch.utils.data import DataLoader, Dataset

BATCH, PIXELS = 4, 64


class ShardedDigits(Dataset):
    """Digits in files of four; a byte for each pixel, then a byte for each label."""

    def __init__(self, folder: Path, shards: range) -> None:
        self.paths = [folder / f"shard-{number:03}.bin" for number in shards]

    def __len__(self) -> int:
        return BATCH * len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with self.paths[index // BATCH].open("rb") as shard:  # HERE:case-05
            data = torch.frombuffer(bytearray(shard.read()), dtype=torch.uint8)
        image, label = data[: BATCH * PIXELS].view(BATCH, PIXELS), data[BATCH * PIXELS :]
        return image[index % BATCH].float() / 255, int(label[index % BATCH])


def remember_worker(number: int) -> None:
    torch.set_num_threads(1)
    note(f"worker-{number}", os.getpid())


class DigitsData(lightning.LightningDataModule):
    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__()
        self.folder, self.shards = folder, shards

    def prepare_data(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for number in range(self.shards + 4):
            path = self.folder / f"shard-{number:03}.bin"
            if not path.exists():
                labels = [(number + i) % 10 for i in range(BATCH)]
                pixels = b"".join(bytes([20 * label]) * PIXELS for label in labels)
                path.write_bytes(pixels + bytes(labels))

    def train_dataloader(self) -> DataLoader:
        data = ShardedDigits(self.folder, range(self.shards))
        return DataLoader(data, BATCH, num_workers=2, worker_init_fn=remember_worker)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(ShardedDigits(self.folder, range(self.shards, self.shards + 4)), BATCH)


class DigitsModel(lightning.LightningModule):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(PIXELS, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
        )

    def training_step(self, batch, index):
        time.sleep(0.05)
        if self.global_step == 20:
            note("reached", 20)
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        accuracy = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    note_start()
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--shards", type=int, default=80)
    args = parser.parse_args()
    lightning.seed_everything(1)
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint("checkpoints", save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=args.epochs,
        callbacks=[checkpoints],
        logger=lightning.pytorch.loggers.CSVLogger("logs"),
        enable_progress_bar=False,
        log_every_n_steps=10,
    )
    last = Path("checkpoints/last.ckpt")
    data = DigitsData(Path("shards"), args.shards)
    trainer.fit(DigitsModel(), data, ckpt_path=str(last) if last.exists() else None)


if __name__ == "__main__":
    main()
