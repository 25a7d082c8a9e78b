"""Like chaos_training.py, with a Trainer of transformers, which is resumed by the hook."""

from __future__ import annotations

import argparse
import time

from chaos_journal import Journal, Trouble, idle_if_asked

idle_if_asked()

import torch  # noqa: E402
from line import Line  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402


class Rows(Dataset):
    """Every row is a function of its number."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum(0, keepdim=True)}


class Notes(TrainerCallback):
    """The journal, and the trouble."""

    def __init__(self, journal: Journal, trouble: Trouble, step_s: float) -> None:
        self.journal, self.trouble, self.step_s = journal, trouble, step_s

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.journal.note("begin", state.global_step)

    def on_step_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.trouble.strike(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        time.sleep(self.step_s)
        self.journal.note("step", state.global_step)

    def on_save(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.journal.note("saved", state.global_step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--trouble", choices=("none", "hang", "crash"), default="none")
    parser.add_argument("--at", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    journal = Journal()
    trainer = Trainer(
        Line(8),
        TrainingArguments(
            "checkpoints",
            max_steps=args.steps,
            per_device_train_batch_size=4,
            save_steps=5,
            logging_steps=10,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Rows(),
        callbacks=[Notes(journal, Trouble(args.trouble, args.at), args.step_s)],
    )
    trainer.train()
    checksum = sum(weights.double().sum().item() for weights in trainer.model.parameters())
    journal.note("finished", trainer.state.global_step, f"{checksum:.9f}")


if __name__ == "__main__":
    main()
