"""A training some of whose examples cannot be read, or not be moved to the device.

    bad_batches.py plain|ranks|trainer|lightning|accelerate KIND [WORKERS]

20 examples in batches of 2; numbers 6 and 12 are bad, 3 of the evaluation. It ends with the steps
that it has made. KIND: READ, MOVE, HEALTHY, ALL (all are bad), STREAM (an iterable dataset), GONE
(a worker ends in place of a bad example).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from line import QUIET, Line, lightning_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

FRAMEWORK, KIND = sys.argv[1:3]
WORKERS = int(sys.argv[3]) if len(sys.argv) > 3 else 0
BAD = (6, 12)


class Moved:
    """A batch that is made when it is moved."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def to(self, *_: Any, **__: Any) -> torch.Tensor:
        if any(round(float(row[0]) * 20) in BAD for row in self.rows):
            raise ValueError("broken on the way")
        return self.rows


class Rows(Dataset):
    """Rows with their number."""

    def __init__(self, bad: tuple[int, ...]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        if number in self.bad and KIND == "GONE":
            os._exit(3)
        if KIND == "ALL" or (number in self.bad and KIND in ("READ", "STREAM")):
            raise ValueError(f"broken example {number}")
        return {"x": torch.full((4,), number / 20), "labels": torch.ones(1)}


class Stream(IterableDataset):
    """The same one after the other."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        rows = Rows(BAD)
        return (rows[number] for number in range(20))


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    batch: dict[str, Any] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    if KIND == "MOVE":
        batch["x"] = Moved(batch["x"])
    return batch


def loader(bad: tuple[int, ...] = BAD, sampler: Any = None) -> DataLoader:
    rows: Any = Stream() if KIND == "STREAM" else Rows(bad)
    return DataLoader(
        rows, 2, num_workers=WORKERS, collate_fn=collate, sampler=sampler,
        persistent_workers=WORKERS > 0,
    )  # fmt: skip


def loop(model: torch.nn.Module, batches: Any, optimizer: Any, backward: Any) -> int:
    steps = 0
    for _ in range(2):
        for batch in batches:
            optimizer.zero_grad()
            backward(model(**batch)["loss"])
            optimizer.step()
            steps += 1
    with torch.no_grad():
        if KIND == "MOVE":  # nobody moves these
            return steps
        steps += 100 * len([model(**batch) for batch in loader((3,))])
    return steps


def plain() -> int:
    model = Line()
    return loop(model, loader(), torch.optim.SGD(model.parameters()), torch.Tensor.backward)


def ranks() -> int:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Line())
    sampler: Any = DistributedSampler(Rows(BAD), shuffle=False)
    batches = loader(sampler=sampler)
    steps = loop(model, batches, torch.optim.SGD(model.parameters()), torch.Tensor.backward)
    torch.distributed.destroy_process_group()
    return steps


def accelerate() -> int:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters())
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    return loop(model, batches, optimizer, accelerator.backward)


def trainer() -> int:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=2, per_device_train_batch_size=2, report_to=[],
        per_device_eval_batch_size=2, remove_unused_columns=False, disable_tqdm=True,
        save_strategy="no", eval_strategy="epoch", dataloader_num_workers=WORKERS, use_cpu=True,
    )  # fmt: skip
    job = Trainer(
        model=Line(), args=arguments, train_dataset=Rows(BAD), eval_dataset=Rows((3,)),
        data_collator=collate,
    )  # fmt: skip
    job.train()
    return job.state.global_step + 100 * sum("eval_loss" in row for row in job.state.log_history)


def lightning() -> int:
    import lightning.pytorch as L  # noqa: N812

    class Module(lightning_module(Line())):  # type: ignore[misc]
        validations = 0

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.validations += 1

    job = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, enable_checkpointing=False,
        num_sanity_val_steps=0, **QUIET,
    )  # fmt: skip
    module = Module()
    job.fit(module, loader(), loader((3,)))
    return job.global_step + 100 * module.validations


print(f"steps {globals()[FRAMEWORK]()}", flush=True)
