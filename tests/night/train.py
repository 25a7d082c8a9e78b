"""An ordinary training: a small GPT-2 on local text with the Hugging Face Trainer.

It knows nothing of wtrain and nothing of what will happen to it; night_faults.py does that from
outside. Started by torchrun, a rank each with two DataLoader workers.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH = 96


class Pieces(Dataset):
    """Pieces of the text as character numbers; what was cut once is kept."""

    def __init__(self, text: str, pieces: int) -> None:
        self.vocabulary = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([numbers[character] for character in text])
        self.pieces = pieces
        self.cache: dict[int, torch.Tensor] = {}
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.pieces

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        first = (index * 97) % (len(self.tokens) - LENGTH)
        with self.lock:
            if first not in self.cache:
                self.cache[first] = self.tokens[first : first + LENGTH]
            piece = self.cache[first]
        return {"input_ids": piece, "labels": piece}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--steps-per-epoch", type=int, required=True)
    parser.add_argument("--save-steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    arguments = TrainingArguments(
        "output",
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        dataloader_num_workers=2,
        save_steps=options.save_steps,
        save_total_limit=2,
        logging_steps=20,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=0,
    )
    ranks = arguments.world_size
    data = Pieces(
        options.text.read_text(encoding="utf-8"), options.batch * ranks * options.steps_per_epoch
    )
    config = GPT2Config(
        vocab_size=len(data.vocabulary),
        n_positions=LENGTH,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
    result = trainer.train()
    trainer.save_model("output/final")
    if arguments.process_index == 0:
        print(f"finished step={result.global_step} loss={result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
