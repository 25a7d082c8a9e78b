"""Waits inside torch: loader workers, autograd threads, gloo ranks, the store of a job."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta

from say import SLEEPS, child, main, program, waits


@program(3, needs="torch")
def loader_whose_worker_1_sleeps_while_worker_0_is_idle():
    """Only frames tell who owes the batch: both workers, and the waiter, can write to the queue."""
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index % 2:
                waits("sleep", left_s=600, **SLEEPS)
                time.sleep(600)  # here
            return index

    numbers = torch.utils.data.DataLoader(Numbers(), num_workers=2, prefetch_factor=1)
    batches = iter(numbers)
    workers = [worker.pid for worker in batches._workers]
    next(batches)
    idle, everyone = workers[0], [os.getpid(), *workers]
    # What the parent could write before its fork the later worker can write, too.
    waits("pipe", pid=idle, call="read", others=everyone, timed=True)
    waits("pipe", call="read", others=everyone, timed=True)
    next(batches)


@program(2, needs="torch")
def backward_whose_thread_sleeps():
    """So deep in backward passes inside of backward passes, another thread makes them."""
    import torch

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(context, value, left):
            context.left = left
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            if threading.get_native_id() != os.getpid():
                waits("sleep", left_s=600, **SLEEPS)
                time.sleep(600)  # here
            if context.left == 1:
                waits("mutex", address=0)
            with torch.enable_grad():
                again = torch.ones(1, requires_grad=True)
                Deep.apply(again, context.left - 1).sum().backward()
            return gradient, None

    Deep.apply(torch.ones(1, requires_grad=True), 61).sum().backward()


def ranks(run) -> None:
    """Two ranks over gloo: rank 0 is this process."""
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    def join(rank):
        dist.init_process_group(
            "gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(minutes=30)
        )
        dist.barrier()
        run(rank, dist)

    child(join, 1)
    join(0)


def deadlock(stuck):
    """One of two ranks; the other one waits for it in a collective."""

    def run(rank, dist):
        import torch

        if rank != stuck:
            waits("mutex", address=0)
            dist.all_reduce(torch.ones(1))  # here
        server = torch._C._distributed_c10d._WorkerServer("server")  # noqa: F841
        lock = threading.Lock()
        lock.acquire()
        waits("mutex", address=0, proven=True)
        lock.acquire()  # here

    ranks(run)


@program(2, needs="torch", lines=True)
def gloo_rank_with_a_real_deadlock():
    """The loop of its transport ticks on."""
    deadlock(1)


@program(2, needs="torch", lines=True)
def gloo_rank_0_with_a_real_deadlock():
    """And the threads of its store and of torch's worker server, which serve others."""
    deadlock(0)


@program(2, needs="torch")
def gloo_rank_that_computes():
    """Healthy: the same from rank 0's side."""

    def run(rank, dist):
        import torch

        if rank == 0:
            waits("mutex", address=0)
            dist.all_reduce(torch.ones(1))
        waits("running")
        while True:  # here
            pass

    ranks(run)


@program(needs="torch")
def store_client_of_rank_0():
    """The store is a thread of the same process: who owes the key is not at the other end."""
    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", 0, None, True, timeout=timedelta(minutes=30), wait_for_workers=False
    )
    here = {"address": f"127.0.0.1:{store.port}", "on_this_host": True, "moved_bytes": 0}
    waits("tcp", call="read", others=[os.getpid()], timed=True, **here)
    store.wait(["rank 1 is there"])


if __name__ == "__main__":
    main()
