"""Trainers one after the other in one script, as people write them; stuck once, in the one named.

--mode folds      three folds, each into a directory of its own
--mode skip       the same; a fold that has left its result is skipped
--mode stages     two stages, each into a directory of its own
--mode same-dir   two stages into the same directory
--mode worker     a worker process that takes two tasks from a list, one after the other

Every training prints where it began and where it ended. Nothing here resumes by itself.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path

from zoo import once


def make_trainer(out: str, seed: int, steps: int, hang: bool):
    """A tiny model and a Trainer that saves every five steps."""
    import torch
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(seed)

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int):
            row = (torch.arange(6) * seed + index) % 16
            return {"input_ids": row, "labels": row}

    class Follow(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            print(f"{out}: begins at {state.global_step}", flush=True)

        def on_step_end(self, args, state, control, **kwargs):
            if hang and state.global_step == 13 and once("hung-once"):
                print(f"{out}: stuck", flush=True)
                while True:
                    time.sleep(3600)

    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    arguments = transformers.TrainingArguments(
        out, max_steps=steps, save_steps=5, per_device_train_batch_size=4, logging_steps=5,
        report_to=[], disable_tqdm=True, use_cpu=True, seed=seed,
    )  # fmt: skip
    return Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Data(), callbacks=[Follow()])


def train(out: str, seed: int, steps: int = 20, hang: bool = False) -> None:
    trainer = make_trainer(out, seed, steps, hang)
    trainer.train()
    total = sum(p.double().sum().item() for p in trainer.model.parameters())
    print(f"{out}: ended at {trainer.state.global_step}, sum {total:.9f}", flush=True)


def folds(*, skip: bool) -> None:
    for number in (1, 2, 3):
        result = Path(f"fold{number}.done")
        if skip and result.exists():
            print(f"fold{number}: skipped", flush=True)
            continue
        train(f"fold{number}", seed=number, hang=number == 3)
        result.touch()


def stages(*, same: bool) -> None:
    train("out" if same else "sft", seed=1, steps=20)
    train("out" if same else "dpo", seed=2, steps=15, hang=True)


def work(tasks: list[str]) -> None:
    """A worker of a queue: a task that was not confirmed is delivered again."""
    for task in tasks:
        done = Path(f"{task}.confirmed")
        if done.exists():
            continue
        train(f"runs/{task}", seed=len(task), hang=task == "second")
        done.touch()


def worker() -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=(["one", "second"],))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"the worker ended with {process.exitcode}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True)
    mode = parser.parse_args().mode
    if mode in ("folds", "skip"):
        folds(skip=mode == "skip")
    elif mode in ("stages", "same-dir"):
        stages(same=mode == "same-dir")
    else:
        worker()
    print(f"finished {mode} pid {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
