"""Documents of a small corpus, made ready by other processes."""

from __future__ import annotations

import multiprocessing.pool
from pathlib import Path

import torch


def make_documents(folder: Path, count: int, words: int) -> list[Path]:
    """Writes the documents that are missing."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"doc-{number:02}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            path.write_text(" ".join(f"w{number}x{i}" for i in range(words)), encoding="utf-8")
    return paths


def tokenise(path: Path) -> torch.Tensor:
    text = path.read_bytes().decode("utf-8")  # HERE:case-11
    return torch.tensor([hash(word) % 500 for word in text.split()[:16]])


def batches(pool: multiprocessing.pool.Pool, paths: list[Path], size: int):
    """Batches of tokens in the order of the documents."""
    batch = []
    for tokens in pool.imap(tokenise, paths, chunksize=4):
        batch.append(tokens)
        if len(batch) == size:
            yield torch.stack(batch)
            batch = []
