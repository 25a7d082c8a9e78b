"""Trainings that ask for a GPU, and one that fills memory with cycles; each ends with "finished".

wanted_device.py plain|ranks|trainer|accelerate|lightning|by-hand|hoards [trainer]
"""

from __future__ import annotations

import gc
import resource
import sys
from typing import Any

import torch
from line import QUIET, Line, Ones, lightning_module
from torch.utils.data import DataLoader


class Model(Line):
    """`hoards`: each forward pass leaves 60 MB behind that only a collection frees."""

    hoards = False

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.hoards:
            cycle: list[Any] = [bytearray(60 << 20)]
            cycle.append(cycle)
        return super().forward(x, labels)


def plain(device: str = "cuda") -> None:
    """As scripts ask for a GPU: by string, by number, by object, as a default, in a checkpoint."""
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters())
    for batch in DataLoader(Ones(40), 2):
        on_it = {name: value.to(torch.device(device)) for name, value in batch.items()}
        optimizer.zero_grad()
        model(**on_it)["loss"].backward()
        optimizer.step()
    if device == "cuda":
        model.cuda().to(0)
        with torch.device("cuda"):
            parts = [torch.zeros(2), torch.ones(2, device="cuda:0"), torch.ones(2).cuda()]
        torch.save(model.state_dict(), "model.pt")
        torch.load("model.pt", map_location="cuda")
        torch.cuda.synchronize()
        assert {part.device.type for part in parts} == {"cpu"}


def trainer() -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", max_steps=20, per_device_train_batch_size=2, report_to=[],
        remove_unused_columns=False, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    if not Model.hoards:
        assert arguments.use_cpu
        Model().to("cuda:0")
    Trainer(model=Model(), args=arguments, train_dataset=Ones(40)).train()


def ranks() -> None:
    """Under torchrun, one GPU for each."""
    import os

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", local))
    model = torch.nn.parallel.DistributedDataParallel(Model().to(local), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(2, 4, device=local), torch.ones(2, 1).cuda(local))["loss"].backward()
    optimizer.step()
    torch.distributed.destroy_process_group()


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="fp16")
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(Ones(40), 2))
    for batch in batches:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()


def lightning() -> None:
    import lightning.pytorch as L  # noqa: N812

    L.Trainer(
        accelerator="gpu", devices=[0], precision="16-mixed", max_epochs=1,
        enable_checkpointing=False, **QUIET,
    ).fit(lightning_module(Model())(), DataLoader(Ones(40), 2))  # fmt: skip


def by_hand() -> None:
    """No optimizer: nothing to free memory after, and no parameters that tell a device."""
    weight = torch.zeros(4, requires_grad=True)
    for _ in range(20):
        (grad,) = torch.autograd.grad((weight - 1).pow(2).sum(), weight)
        weight = (weight - 0.1 * grad).detach().requires_grad_()


def hoards() -> None:
    """Cycles that nobody collects, in 700 MB more than the imports have taken."""
    if sys.argv[2:] == ["trainer"]:
        import transformers.trainer  # noqa: F401
    gc.disable()
    Model.hoards = True
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (700 << 20),) * 2)
    trainer() if sys.argv[2:] == ["trainer"] else plain("cpu")


globals()[sys.argv[1].replace("-", "_")]()
print("finished", flush=True)
