"""Train a small character model on local text with Lightning.

A plain script: it knows nothing of watchdog_train. Nothing is downloaded. It works under both
names of Lightning (--package pytorch_lightning) and with several processes (--devices 2).

    wtrain run -- python examples/lightning_fit.py

PLANT_HANG_AT=20 plants a real deadlock of the DataLoader workers at step 20: a thread holds a lock
while the workers of a new epoch are forked. It happens only with workers. PLANT_SLEEP_AT=25 lets
the last rank sleep for ever at step 25, in the first attempt only.
"""

import argparse
import importlib
import os
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

TEXT = Path(__file__).with_name("text.txt")
BATCH = 4
PLANT_HANG_AT = int(os.environ.get("PLANT_HANG_AT", "-1"))
PLANT_SLEEP_AT = int(os.environ.get("PLANT_SLEEP_AT", "-1"))

parser = argparse.ArgumentParser()
parser.add_argument("--package", default="lightning.pytorch")
parser.add_argument("--root", default="lightning-output")
parser.add_argument("--max_epochs", type=int, default=6)
parser.add_argument("--epoch_steps", type=int, default=10)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--strategy", default="auto")
parser.add_argument("--folds", type=int, default=1)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--step_s", type=float, default=0.0, help="a pause in every step")
options = parser.parse_args()
L = importlib.import_module(options.package)

lock = threading.Lock()


class Characters(Dataset):
    """Pieces of the text as character numbers."""

    def __init__(self, text, length, batches):
        self.vocabulary = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([numbers[character] for character in text])
        self.length = length
        self.batches = batches

    def __len__(self):
        return BATCH * self.batches

    def __getitem__(self, index):
        with lock:
            pass
        first = (index * 97) % (len(self.tokens) - self.length - 1)
        piece = self.tokens[first : first + self.length + 1]
        return piece[:-1], piece[1:]


class NextCharacter(L.LightningModule):
    """Predicts the next character."""

    def __init__(self, vocabulary_size, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = torch.nn.Embedding(vocabulary_size, width)
        self.recurrent = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, vocabulary_size)

    def loss(self, batch):
        piece, following = batch
        scores = self.head(self.recurrent(self.embedding(piece))[0])
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(options.step_s)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Planted(L.Callback):
    """The hangs that the environment asks for."""

    def on_train_epoch_start(self, trainer, module):
        # The workers of this epoch are forked next.
        if trainer.global_step == PLANT_HANG_AT:
            held = threading.Event()
            threading.Thread(target=self.hold, args=(held,), daemon=True).start()
            held.wait()

    @staticmethod
    def hold(held):
        with lock:
            held.set()
            time.sleep(0.5)

    def on_train_batch_start(self, trainer, module, batch, index):
        last = trainer.global_rank == trainer.world_size - 1
        first_attempt = os.environ.get("WTRAIN_ATTEMPT", "1") == "1"
        if trainer.global_step == PLANT_SLEEP_AT and last and first_attempt:
            time.sleep(100_000)


def train(fold):
    """One fit from its beginning; returns its Trainer."""
    torch.manual_seed(fold)
    text = TEXT.read_text(encoding="utf-8")
    data = Characters(text, length=64, batches=options.epoch_steps * options.devices)
    held_out = Characters(text[::-1], length=64, batches=2)
    workers = {"num_workers": options.workers, "batch_size": BATCH}
    trainer = L.Trainer(
        default_root_dir=options.root,
        max_epochs=options.max_epochs,
        accelerator="cpu",
        devices=options.devices,
        strategy=options.strategy,
        log_every_n_steps=5,
        callbacks=[Planted()],
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    model = NextCharacter(len(data.vocabulary))
    trainer.fit(model, DataLoader(data, **workers), DataLoader(held_out, batch_size=BATCH))
    return trainer


def main():
    for fold in range(options.folds):
        trainer = train(fold)
        if trainer.is_global_zero:
            parameters = trainer.lightning_module.parameters()
            checksum = sum(weights.double().sum().item() for weights in parameters)
            step = trainer.global_step
            print(f"finished fold={fold} step={step} checksum={checksum:.9f}", flush=True)


if __name__ == "__main__":
    main()
