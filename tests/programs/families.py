"""Hang: one cause of each family that a CPU can show; `families.py NAME`, a rank by RANK.

Each function reaches its situation, says ready, and stays there (or ends, for a crash). They are
captured by scripts/capture_corpus.py.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from zoo import ready

FOREVER = threading.Event()
RANK = int(os.environ.get("RANK", "0"))


def stay() -> None:
    """Waits for ever, where no rule knows the name of the function."""
    ready()
    FOREVER.wait()


def loader(dataset, context="fork", **settings):
    from torch.utils.data import DataLoader

    threading.Timer(3.0, ready).start()
    for _ in DataLoader(
        dataset, batch_size=2, num_workers=2, multiprocessing_context=context, **settings
    ):
        pass


class Sleeping(list):
    def __getitem__(self, index):
        FOREVER.wait()


def dataloader_worker_stuck():
    loader(Sleeping(range(8)))


class Logging(list):
    def __getitem__(self, index):
        import logging

        logging.getLogger("data").warning("item %d", index)
        return index


def fork_logging_lock():
    import logging

    handler = logging.StreamHandler()
    handler._at_fork_reinit = lambda: None  # logging renews only the locks that it knows of
    logging.getLogger().addHandler(handler)
    holder = threading.Thread(target=lambda: (handler.acquire(), FOREVER.wait()), daemon=True)
    holder.start()
    time.sleep(0.3)
    loader(Logging(range(8)))


class Multiplying(list):
    def __getitem__(self, index):
        import torch

        torch.set_num_threads(4)
        return (torch.rand(700, 700) @ torch.rand(700, 700)).sum()


def fork_native_lock():
    import torch

    torch.set_num_threads(4)
    for _ in range(3):
        torch.rand(900, 900) @ torch.rand(900, 900)
        (torch.rand(2_000_000) * 2).sum()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(4)
        (torch.rand(2_000_000) * 2).sum()
        os._exit(0)
    time.sleep(2)
    ready()
    os.waitpid(pid, 0)


class Encoding(list):
    tokenizer = None

    def __getitem__(self, index):
        return len(self.tokenizer.encode_batch(["a b c"] * 400))


def fork_tokenizers():
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.encode_batch(["a b c"] * 20_000)
    Encoding.tokenizer = tokenizer
    loader(Encoding(range(8)))


def idle(_):
    return None


def spawn_start():
    import multiprocessing

    os.environ["REIMPORT_HANGS"] = "1"
    child = multiprocessing.get_context("spawn").Process(target=idle, args=(1,))
    child.start()
    time.sleep(1)
    ready()
    child.join()


class Aborting(list):
    def __getitem__(self, index):
        os.abort()


def dataloader_worker_died():
    loader(Aborting(range(8)))


def waits_for_ever(example):
    FOREVER.wait()
    return example


def datasets_map_num_proc():
    from datasets import Dataset

    threading.Timer(6.0, ready).start()
    Dataset.from_dict({"x": list(range(40))}).map(waits_for_ever, num_proc=2)


def gil_deadlock():
    import ctypes

    threading.Timer(1.0, ready).start()
    time.sleep(0.2)
    semaphore = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)  # keeps the interpreter lock during the call
    library.sem_init(semaphore, 0, 0)
    os.write(1, b"about to wait\n")
    ready()
    library.sem_wait(semaphore)


def import_lock():
    import importlib

    with open("slow_module.py", "w") as file:
        file.write("import threading\nthreading.Event().wait()\n")
    sys.path.insert(0, os.getcwd())
    threading.Thread(target=importlib.import_module, args=("slow_module",), daemon=True).start()
    time.sleep(0.5)
    threading.Timer(1.0, ready).start()
    importlib.import_module("slow_module")


def file_lock():
    import filelock

    pid = os.fork()
    if pid == 0:
        lock = filelock.FileLock("build.lock")
        with lock:
            FOREVER.wait()
    time.sleep(0.5)
    threading.Timer(1.0, ready).start()
    with filelock.FileLock("build.lock"):
        pass


def waiting_for_input():
    threading.Timer(1.0, ready).start()
    breakpoint()  # noqa: T100


def compiles_for_long():
    import torch

    def many_steps(x):
        for step in range(600):
            x = torch.sin(x) * step + x.cos().sum(-1, keepdim=True)
        return x

    threading.Timer(6.0, ready).start()
    torch.compile(many_steps)(torch.rand(16, 100))


def black_hole() -> int:
    """A server that takes connections and never says a word; its port."""
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    kept = []

    def accept() -> None:
        while True:
            kept.append(server.accept())

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


def hub_download():
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{black_hole()}"
    os.environ["HF_HUB_ETAG_TIMEOUT"] = "3600"
    os.environ["HF_HOME"] = os.getcwd()
    from huggingface_hub import hf_hub_download

    threading.Timer(1.0, ready).start()
    hf_hub_download("someone/model", "config.json")


def logger_service_init():
    os.environ.update(
        WANDB_BASE_URL=f"http://127.0.0.1:{black_hole()}",
        WANDB_API_KEY="0" * 40,
        WANDB_SILENT="true",
        WANDB_INIT_TIMEOUT="3600",
    )
    import wandb

    threading.Timer(3.0, ready).start()
    wandb.init(project="captured")


def exit_join():
    threading.Thread(target=FOREVER.wait).start()
    print("{'train_runtime': 12.1, 'train_loss': 0.5}", flush=True)
    threading.Timer(1.0, ready).start()


def nan_loss():
    for step in range(1, 6):
        print(f"step {step} loss {'nan' if step > 2 else 2.0 / step}", flush=True)
    stay_quietly()


def stay_quietly():
    ready()
    time.sleep(3600)


def oom_killer():
    print("step 1 loss 2.0", flush=True)
    ready()
    os.kill(os.getpid(), 9)


def healthy_slow():
    import torch

    ready()
    step = 0
    while True:
        for _ in range(30):
            torch.rand(600, 600) @ torch.rand(600, 600)
        step += 1
        print(f"step {step} loss {2.0 / step:.3f}", flush=True)


def group():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist


def collective_mismatch():
    import torch

    dist = group()
    threading.Timer(2.0, ready).start()
    tensor = torch.ones(4)
    if RANK == 0:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor)
    else:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, src=0)
    dist.recv(tensor, src=1 - RANK)


def evaluate():
    FOREVER.wait()


def rank_left_early():
    import torch

    dist = group()
    threading.Timer(2.0, ready).start()
    if RANK == 1:
        evaluate()
    dist.all_reduce(torch.ones(4))


def tokenize_dataset():
    while True:
        sum(len(str(number)) for number in range(20_000))


def rank0_only_work():
    dist = group()
    threading.Timer(2.0, ready).start()
    if RANK == 0:
        tokenize_dataset()
    dist.barrier()


def store_rendezvous():
    threading.Timer(4.0, ready).start()
    group()


def ddp_init():
    import torch

    group()
    threading.Timer(3.0, ready).start()
    if RANK == 1:
        stay_quietly()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))


def fsdp_state_gather():
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist = group()
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
    threading.Timer(2.0, ready).start()
    if RANK == 0:
        weight.full_tensor()
    dist.barrier()


def gloo_timeout():
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    if RANK == 1:
        time.sleep(30)
    dist.all_reduce(torch.ones(4))


if __name__ == "__mp_main__" and os.environ.get("REIMPORT_HANGS"):
    FOREVER.wait()
if __name__ == "__main__":
    globals()[sys.argv[1]]()
