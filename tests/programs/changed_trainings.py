"""Short trainings each of which fails unless what is trained on, or evaluated, is made less.

    changed_trainings.py plain|trainer|lightning|accelerate TROUBLE ...

Ordinary code of each framework, one training for each trouble: the evaluation breaks, sequences
are too long, one of many rows (of a stream) cannot be read, the batch of an evaluation is too large
(eval-batch), too long sequences hang, nothing. The last line is JSON: what became of each, facts.
"""

from __future__ import annotations

import glob
import json
import sys
import time
from typing import Any

import torch
from line import QUIET, lightning_module
from torch.utils.data import DataLoader, Dataset, IterableDataset

LENGTH, ROWS, BATCH = 64, 16, 4
trouble = ""  # evaluation, long, many, stream, eval-batch, hang, nothing
facts: dict[str, Any] = {"lengths": [], "evaluated": 0, "trained": 0}


class Rows(Dataset):
    """Tokens; rows that cannot be read come late, where there are any."""

    classes = ("a", "b")

    def __len__(self) -> int:
        return 40 if trouble == "many" else ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= ROWS:
            raise RuntimeError(f"row {index} cannot be read")
        ids = torch.full((8 if trouble == "nothing" else LENGTH,), 1 + index % 7)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Stream(IterableDataset):
    """The same as a stream."""

    def __iter__(self) -> Any:
        return (Rows()[index] for index in range(ROWS + 1))


class Model(torch.nn.Module):
    """A device on which not everything fits, and an evaluation that breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(8, 8)

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
        rows, length = input_ids.shape
        if trouble == "long" and length > LENGTH // 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        while trouble == "hang" and length > 16:
            time.sleep(60)
        facts["lengths"] = sorted({*facts["lengths"], length})
        if self.training:
            facts["trained"] += rows
        else:
            facts["evaluated"] += rows
            if trouble == "evaluation":
                raise RuntimeError("the evaluation breaks")
            if trouble == "eval-batch" and rows > BATCH:
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        out = self.words(input_ids)
        loss = torch.nn.functional.cross_entropy(out.view(-1, 8), labels.view(-1))
        return {"loss": loss, "logits": out}


def plain(wrap: Any = None) -> None:
    """A loop by hand; with accelerate its loaders and its model are wrapped."""
    data = Stream() if trouble == "stream" else Rows()
    train = DataLoader(data, BATCH, shuffle=trouble != "stream", num_workers=trouble == "many")
    assert trouble == "stream" or train.dataset.classes == ("a", "b")
    evaluation = DataLoader(Rows(), BATCH if trouble == "nothing" else 2 * BATCH)
    model: Any = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if wrap is not None:
        model, optimizer, train, evaluation = wrap.prepare(model, optimizer, train, evaluation)
    for _ in range(2):
        model.train()
        for batch in train:
            optimizer.zero_grad()
            loss = model(**batch)["loss"]
            loss.backward() if wrap is None else wrap.backward(loss)
            optimizer.step()
        if trouble in ("evaluation", "eval-batch", "nothing"):
            model.eval()
            with torch.no_grad():
                for batch in evaluation:
                    model(**batch)


def accelerate() -> None:
    from accelerate import Accelerator

    plain(Accelerator(cpu=True))


def trainer() -> None:
    from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

    evaluates = trouble == "evaluation"
    arguments = TrainingArguments(
        output_dir=f"trainer-{trouble}", max_steps=6, per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH if trouble == "nothing" else 2 * BATCH,
        eval_strategy="steps" if evaluates else "no", eval_steps=2, save_steps=2,
        load_best_model_at_end=evaluates, remove_unused_columns=False, report_to=[],
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    job = Trainer(
        model=Model(), args=arguments, eval_dataset=Rows(),
        train_dataset=Stream() if trouble == "stream" else Rows(),
        callbacks=[EarlyStoppingCallback(1)] if evaluates else [],
    )  # fmt: skip
    job.train()
    if trouble == "eval-batch":
        job.evaluate()


def lightning() -> None:
    import lightning.pytorch as L  # noqa: N812
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    class Module(lightning_module(Model())):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            if trouble != "evaluation":
                return optimizer
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
            }

    if trouble == "evaluation":
        Module.validation_step = lambda self, batch, index: self.log(  # type: ignore[assignment]
            "val_loss", self.model(**batch)["loss"]
        )
    home = f"lightning-{trouble}"
    job = L.Trainer(
        accelerator="cpu", max_epochs=3, default_root_dir=home, check_val_every_n_epoch=1, **QUIET,
        callbacks=[
            EarlyStopping("val_loss"), ModelCheckpoint(home, monitor="val_loss", save_top_k=2),
        ] if trouble == "evaluation" else [],
    )  # fmt: skip
    train = DataLoader(Stream() if trouble == "stream" else Rows(), BATCH)
    job.fit(Module(), train, DataLoader(Rows(), 2 * BATCH) if trouble == "evaluation" else None)
    facts["validates"] = job.limit_val_batches
    facts["checkpoints"] = len(glob.glob("lightning-evaluation/*.ckpt"))


def attempt(framework: str) -> str:
    try:
        globals()[framework]()
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return "ended"


def main(framework: str, *troubles: str) -> None:
    global trouble
    torch.manual_seed(0)
    became = {}
    for trouble in troubles:
        became[trouble] = attempt(framework)
    print(json.dumps({"became": became, **facts}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
