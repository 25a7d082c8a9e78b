"""A short training with one framework that tells at its end with which settings it ran.

    framework_facts.py plain|trainer|lightning|accelerate

Ordinary scripts: two loader workers, pinned memory where there is a device, persistent workers, an
evaluation, a map of the library datasets in two processes. Facts are a line of
JSON for each rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

ROWS, BATCH = 90, 8
SHOWN = (
    "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_XET",
    "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_COMPILE_THREADS", "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip

facts: dict[str, Any] = {}


class Rows(Dataset):
    """Small rows."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), index / ROWS), "labels": torch.ones(1)}


class Model(torch.nn.Module):
    """A line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.line(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def seen(loader: DataLoader) -> None:
    """What became of a loader."""
    context = loader.multiprocessing_context
    facts["workers"] = loader.num_workers
    facts["start"] = context.get_start_method() if context is not None else None
    facts["pinned"] = loader.pin_memory
    facts["persistent"] = loader.persistent_workers
    facts["timeout"] = loader.timeout


def make(shuffle: bool = True) -> DataLoader:
    return DataLoader(
        Rows(), BATCH, shuffle=shuffle, num_workers=2, pin_memory=True, persistent_workers=True
    )


def plain() -> None:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        group_timeout()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = make()
    for batch in loader:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    seen(loader)


def trainer() -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="trainer-output",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=1,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        load_best_model_at_end=True,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    job = Trainer(
        model=Model(), args=arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=stop()
    )
    if "RANK" in os.environ:
        group_timeout()
    job.train()
    seen(job.get_train_dataloader())
    facts["batch"] = arguments.per_device_train_batch_size
    facts["accumulation"] = arguments.gradient_accumulation_steps
    facts["step"] = job.state.global_step


def stop() -> list[Any]:
    from transformers import EarlyStoppingCallback

    return [EarlyStoppingCallback(early_stopping_patience=5)]


def lightning() -> None:
    import lightning.pytorch as L  # noqa: N812
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.log("val_loss", self.model(**batch)["loss"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    job = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=1,
        callbacks=[
            EarlyStopping("val_loss"), ModelCheckpoint("lightning-output", monitor="val_loss"),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    job.fit(Module(), make(), make(shuffle=False))
    if "RANK" in os.environ:
        group_timeout()
    seen(job.train_dataloader)
    facts["step"] = job.global_step


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if "RANK" in os.environ:
        group_timeout()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, make())
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
    seen(loader)


def group_timeout() -> None:
    from torch.distributed.distributed_c10d import _get_default_group

    options = _get_default_group()._get_backend(torch.device("cpu")).options
    facts["group_timeout_s"] = options._timeout.total_seconds()


def mapped() -> None:
    """In which process datasets.map runs."""
    try:
        import datasets
    except ModuleNotFoundError:
        return
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"n": list(range(50))})
    told = rows.map(lambda row: {"pid": os.getpid()}, num_proc=2, load_from_cache_file=False)
    facts["map_in_process"] = set(told["pid"]) == {os.getpid()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["plain", "trainer", "lightning", "accelerate"])
    args = parser.parse_args()
    torch.manual_seed(0)
    globals()[args.framework]()
    mapped()
    facts["threads"] = torch.get_num_threads()
    facts["sharing"] = torch.multiprocessing.get_sharing_strategy()
    facts["environment"] = {name: os.environ.get(name) for name in SHOWN}
    facts["mps_or_cuda"] = torch.cuda.is_available() or torch.backends.mps.is_available()
    facts["rank"] = int(os.environ.get("RANK", "0"))
    sys.stdout.write("facts " + json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
