"""Trainings that hang or crash unless one setting is another; each ends with "finished NAME".

    remedy_cases.py NAME

Ordinary code, a function for each case. What only a GPU can do is simulated, and the case says so.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from typing import Any

import torch
from line import Line, Ones
from torch.utils.data import DataLoader, Dataset


def sleep_for_ever() -> None:
    while True:
        time.sleep(60)


class Rows(Dataset):
    """Rows of ones."""

    def __init__(self, rows: int = 16) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4)


def train(loader: Any = None, model: Any = None, epochs: int = 1) -> None:
    """A plain loop."""
    loader = DataLoader(Rows(), 2) if loader is None else loader
    model = torch.nn.Linear(4, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()


# -- Loading ---------------------------------------------------------------------------------------

LOCK = threading.Lock()


class Locked(Rows):
    """A lock that is held while workers are forked stays held in them."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with LOCK:
            return super().__getitem__(index)


def forks_with_a_lock_held() -> None:
    loader = DataLoader(Locked(), 2, num_workers=1)
    with LOCK:
        batches = iter(loader)
    train(batches)


num_workers_0 = spawn = forks_with_a_lock_held


class Worn(Rows):
    """A worker that is used for a second epoch never answers again."""

    taken = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        Worn.taken += 1
        if Worn.taken > self.rows:
            sleep_for_ever()
        return super().__getitem__(index)


def persistent_workers_off() -> None:
    train(DataLoader(Worn(), 2, num_workers=1, persistent_workers=True), epochs=3)


def pin_memory_off() -> None:
    """Simulated: without a GPU there is no pinning thread to hang."""
    loader = DataLoader(Rows(), 2, pin_memory=True)
    if loader.pin_memory:
        raise RuntimeError("Pin memory thread exited unexpectedly")
    train(loader)


class Asleep(Rows):
    """No answer, ever."""

    def __getitem__(self, index: int) -> torch.Tensor:
        sleep_for_ever()
        return torch.ones(4)


def loader_timeout() -> None:
    train(DataLoader(Asleep(), 2, num_workers=1))


def file_system_sharing() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
    kept = list(DataLoader(Rows(200), 1, num_workers=1))
    train(kept)


def num_proc_none() -> None:
    """Simulated: what a forked process says that wants the GPU of its parent."""
    import datasets

    parent = os.getpid()

    def encode(row: dict[str, int]) -> dict[str, int]:
        if os.getpid() != parent:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                "multiprocessing, you must use the 'spawn' start method"
            )
        return {"m": row["n"] + 1}

    rows = datasets.Dataset.from_dict({"n": list(range(20))})
    rows.map(encode, num_proc=2, load_from_cache_file=False)
    train()


def tokenizers_off() -> None:
    """Simulated: a tokenizer whose threads did not come with a fork."""
    if os.environ.get("TOKENIZERS_PARALLELISM") != "false":
        sleep_for_ever()
    train()


def black_hole() -> str:
    """The address of a server that takes connections and never says a word."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    globals()["server"] = server
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def safetensors_off() -> None:
    """The file of safetensors was cut off; the weights are there in another one as well."""
    from transformers import AutoModel, BertConfig, BertModel

    config = BertConfig(
        vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    config.save_pretrained("weights")
    if "--only" in sys.argv:
        BertModel(config).save_pretrained("weights")
    else:
        torch.save(BertModel(config).state_dict(), "weights/pytorch_model.bin")
        with open("weights/model.safetensors", "wb") as file:
            file.write(bytes(64))
    AutoModel.from_pretrained("weights")
    train()


def tokenizers_slow() -> None:
    from transformers import AutoTokenizer

    os.makedirs("tokenizer")
    with open("tokenizer/vocab.txt", "w", encoding="ascii") as file:
        file.write("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword")
    with open("tokenizer/tokenizer_config.json", "w", encoding="ascii") as file:
        file.write('{"tokenizer_class": "BertTokenizer"}')
    tokenizer = AutoTokenizer.from_pretrained("tokenizer")
    print("tokenizer is", "fast" if tokenizer.is_fast else "slow", flush=True)
    train()


def of_the_hub() -> None:
    """A file that is in the cache, and a hub that does not answer; the timeouts are the user's."""
    os.environ["HF_ENDPOINT"] = black_hole()
    from huggingface_hub import hf_hub_download
    from huggingface_hub.constants import HF_HUB_CACHE

    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = os.path.join(HF_HUB_CACHE, "models--somebody--something")
    for path, text in (("refs/main", commit), (f"snapshots/{commit}/config.json", "{}")):
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
            file.write(text)
    hf_hub_download("somebody/something", "config.json")
    train()


hf_offline = hub_timeouts = of_the_hub


def xet_off() -> None:
    """Simulated: a transfer by Xet that never ends."""
    from huggingface_hub import constants

    if not constants.HF_HUB_DISABLE_XET:
        sleep_for_ever()
    train()


def clear_stale_lock() -> None:
    """An extension of torch that is built; the first builder is killed in the middle."""
    from torch.utils.file_baton import FileBaton

    baton = FileBaton("lock")
    if baton.try_acquire():
        if not os.path.exists("begun"):
            with open("begun", "w", encoding="ascii"):
                os.kill(os.getpid(), 9)
        baton.release()
    else:
        baton.wait()
    train()


def soft_lock() -> None:
    """The same with a lock file of filelock."""
    import filelock

    with filelock.SoftFileLock("soft.lock"):
        if not os.path.exists("begun"):
            with open("begun", "w", encoding="ascii"):
                os.kill(os.getpid(), 9)
    train()


# -- How it runs -----------------------------------------------------------------------------------


def omp_1() -> None:
    """A pool of OpenMP threads does not come with a fork; the child waits for it."""
    big = torch.ones(2000, 2000)
    (big @ big).sum()
    torch.exp(big).sum()
    pid = os.fork()
    if pid == 0:
        torch.exp(big).sum()
        os._exit(0)
    os.waitpid(pid, 0)
    train()


def wandb_offline() -> None:
    import wandb

    wandb.init(answer=False)
    train()


def no_compile() -> None:
    """A backend that never comes back."""

    def backend(graph: Any, inputs: Any) -> Any:
        sleep_for_ever()

    train(model=torch.compile(torch.nn.Linear(4, 1), backend=backend))


def compile_threads_1() -> None:
    """Simulated: a compile worker that never answers."""
    from torch._inductor import config

    if config.compile_threads > 1:
        sleep_for_ever()
    train()


def raise_ddp_timeout() -> None:
    """Rank 0 prepares the data for longer than the others wait."""
    from datetime import timedelta

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=2))
    if torch.distributed.get_rank() == 0:
        time.sleep(5.0)
    torch.distributed.barrier()
    train()
    torch.distributed.destroy_process_group()


def stagger_start() -> None:
    """Two ranks make one folder: whoever looks before the other has made it fails."""
    if not os.path.isdir("cache"):
        time.sleep(2.0)
        os.mkdir("cache")
    torch.distributed.init_process_group("gloo")
    train()
    torch.distributed.destroy_process_group()


# -- What is trained -------------------------------------------------------------------------------


class Limited(Line):
    """Simulated: a device on which more than `most` rows do not fit."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(x) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return super().forward(x, labels)


def batch_halve_accumulate() -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", max_steps=6, per_device_train_batch_size=4, report_to=[],
        per_device_eval_batch_size=4, remove_unused_columns=False, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    Trainer(model=Limited(2), args=arguments, train_dataset=Ones(32)).train()


if __name__ == "__main__":
    name = sys.argv[1]
    globals()[name.replace("-", "_")]()
    print(f"finished {name}", flush=True)
