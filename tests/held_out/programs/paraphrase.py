"""Trains a tiny paraphrase detector on two processes with Accelerate."""

from __future__ import annotations

import argparse
import fcntl
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from told import note, note_start, planted
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

logger = get_logger(__name__)
SPLITS, EXPORT = Path("splits"), Path("export")


def write_split(epoch: int) -> None:
    """Draws the pairs of an epoch; only the main process does so."""
    SPLITS.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(epoch)
    tokens = torch.randint(0, 50, (240, 8), generator=generator)
    torch.save((tokens, tokens.sum(1) % 2), SPLITS / f"epoch-{epoch}.pt")
    name = f"epoch-{epoch:02}.done" if planted("name of the split") and epoch else None
    (SPLITS / (name or f"epoch-{epoch}.done")).touch()


def wait_for_split(epoch: int) -> None:
    """Waits until the main process has written the pairs of an epoch."""
    done = SPLITS / f"epoch-{epoch}.done"
    while not done.exists():
        time.sleep(0.5)  # HERE:case-04


def get_dataloaders(accelerator: Accelerator, epoch: int, batch_size: int):
    if accelerator.is_main_process:
        write_split(epoch)
    else:
        wait_for_split(epoch)
    tokens, labels = torch.load(SPLITS / f"epoch-{epoch}.pt")
    train = TensorDataset(tokens[:200], labels[:200])
    held = TensorDataset(tokens[200:], labels[200:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(held, batch_size)


def export_model(accelerator: Accelerator, model: torch.nn.Module, epoch: int) -> None:
    """Writes the weights where the serving jobs of this machine read them, under their lock."""
    if accelerator.is_main_process:
        EXPORT.mkdir(exist_ok=True)
        with (EXPORT / "registry.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # HERE:case-03
            torch.save(accelerator.unwrap_model(model).state_dict(), EXPORT / f"epoch-{epoch}.pt")
    accelerator.wait_for_everyone()


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: torch.nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = []
    for tokens, labels in loader:
        predicted = model(tokens).argmax(dim=-1)
        right.append(accelerator.gather_for_metrics((predicted == labels).float()))
    return torch.cat(right).mean().item()


def training_function(config: dict, args: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=True)
    set_seed(config["seed"])
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 16), torch.nn.Flatten(), torch.nn.Linear(128, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for epoch in range(config["num_epochs"]):
        loaders = get_dataloaders(accelerator, epoch, config["batch_size"])
        train_loader, eval_loader = accelerator.prepare(*loaders)
        model.train()
        for tokens, labels in train_loader:
            loss = torch.nn.functional.cross_entropy(model(tokens), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            time.sleep(args.pause)
        note(f"rank-{accelerator.process_index}", os.getpid())
        accuracy = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
        export_model(accelerator, model, epoch)
        accelerator.save_state(f"checkpoints/epoch_{epoch}")
    accelerator.end_training()


def main() -> None:
    note_start()
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.05)
    args = parser.parse_args()
    config = {"lr": 1e-3, "num_epochs": args.epochs, "seed": 42, "batch_size": 4}
    training_function(config, args)


if __name__ == "__main__":
    main()
