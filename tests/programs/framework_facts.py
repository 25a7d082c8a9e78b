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
from line import QUIET, Line, Ones, lightning_module
from torch.utils.data import DataLoader

ROWS, BATCH = 90, 8
SHOWN = (
    "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_XET",
    "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_COMPILE_THREADS", "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip

facts: dict[str, Any] = {}


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
        Ones(ROWS), BATCH, shuffle=shuffle, num_workers=2, pin_memory=True, persistent_workers=True
    )


def plain() -> None:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        group_timeout()
    model = Line()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = make()
    for batch in loader:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    seen(loader)


def trainer() -> None:
    from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

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
        model=Line(),
        args=arguments,
        train_dataset=Ones(ROWS),
        eval_dataset=Ones(ROWS),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=5)],
    )
    if "RANK" in os.environ:
        group_timeout()
    job.train()
    seen(job.get_train_dataloader())
    facts["batch"] = arguments.per_device_train_batch_size
    facts["accumulation"] = arguments.gradient_accumulation_steps
    facts["step"] = job.state.global_step


def lightning() -> None:
    import lightning.pytorch as L  # noqa: N812
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    class Module(lightning_module(Line())):  # type: ignore[misc]
        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.log("val_loss", self.model(**batch)["loss"])

    job = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=1,
        callbacks=[
            EarlyStopping("val_loss"), ModelCheckpoint("lightning-output", monitor="val_loss"),
        ],
        **QUIET,
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
    model = Line()
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
