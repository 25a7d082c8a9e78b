"""Trains a tiny language model in a plain loop; a pool of processes tokenises each epoch anew."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
from pathlib import Path

import torch
from corpus import batches, make_documents
from told import note_start

log = logging.getLogger("pretrain")


class TinyLM(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(500, 16)
        self.head = torch.nn.Linear(16, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embed(tokens[:, :-1]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def save(model: TinyLM, optimizer: torch.optim.Optimizer, step: int) -> None:
    Path("checkpoints").mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, f"checkpoints/step-{step:05}.pt")


def main() -> None:
    note_start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--more-documents", type=int, default=20, help="joined after an epoch")
    parser.add_argument("--words", type=int, default=40, help="of each document")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    with multiprocessing.Pool(2) as pool:
        for epoch in range(args.epochs):
            count = args.documents + epoch * args.more_documents
            paths = make_documents(Path("documents"), count, args.words)
            for tokens in batches(pool, paths, size=2):
                loss = model(tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                time.sleep(0.05)
            log.info("epoch %d: step %d, loss %.3f", epoch, step, loss.item())
            save(model, optimizer, step)


if __name__ == "__main__":
    main()
