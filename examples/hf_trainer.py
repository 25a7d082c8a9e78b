"""Train a small GPT-2 on local text with the Hugging Face Trainer.

A plain script: it knows nothing of watchdog_train. Nothing is downloaded; the model is made from a
config, the tokens are characters.

    wtrain run -- python examples/hf_trainer.py

PLANT_HANG_AT=30 plants a real deadlock of the DataLoader workers at step 30: a thread holds a lock
while the workers of a new epoch are forked (or, with START_METHOD=spawn, a worker takes a lock
twice). It happens only with workers.
"""

import argparse
import multiprocessing
import os
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset, get_worker_info
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

TEXT = Path(__file__).with_name("text.txt")
BATCH = 4
STEPS_PER_EPOCH = 10
PLANT_HANG_AT = int(os.environ.get("PLANT_HANG_AT", "-1"))
START_METHOD = os.environ.get("START_METHOD", "fork")

lock = threading.Lock()


class Characters(Dataset):
    """Pieces of the text as character numbers."""

    def __init__(self, text, length, planted):
        self.vocabulary = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([numbers[character] for character in text])
        self.length = length
        self.planted = planted

    def __len__(self):
        return BATCH * STEPS_PER_EPOCH

    def __getitem__(self, index):
        with lock:
            if get_worker_info() is not None and self.planted.is_set():
                lock.acquire()
        first = (index * 97) % (len(self.tokens) - self.length)
        piece = self.tokens[first : first + self.length]
        return {"input_ids": piece, "labels": piece}


class PlantedHang(TrainerCallback):
    """Holds the lock in a thread when the epoch begins that contains the chosen step."""

    def __init__(self, planted):
        self.planted = planted

    def on_epoch_begin(self, args, state, control, **kwargs):
        if state.global_step != PLANT_HANG_AT:
            return
        if START_METHOD == "spawn":
            self.planted.set()
            return
        held = threading.Event()
        threading.Thread(target=self.hold, args=(held,), daemon=True).start()
        held.wait()

    @staticmethod
    def hold(held):
        with lock:
            held.set()
            time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="hf-output")
    parser.add_argument("--max_steps", type=int, default=60)
    options = parser.parse_args()
    planted = multiprocessing.get_context(START_METHOD).Event()
    data = Characters(TEXT.read_text(encoding="utf-8"), length=64, planted=planted)
    config = GPT2Config(
        vocab_size=len(data.vocabulary),
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            per_device_train_batch_size=BATCH,
            dataloader_num_workers=2,
            dataloader_persistent_workers=START_METHOD == "spawn",  # they are slow to start
            save_steps=10,
            logging_steps=5,
            seed=0,
            use_cpu=True,
            report_to=[],
        ),
        train_dataset=data,
        callbacks=[PlantedHang(planted)],
    )
    result = trainer.train()
    checksum = sum(weights.double().sum().item() for weights in trainer.model.parameters())
    print(f"finished step={result.global_step} checksum={checksum:.9f}", flush=True)


if __name__ == "__main__":
    if START_METHOD != "fork":
        multiprocessing.set_start_method(START_METHOD)
    main()
