"""Hung: a training that falls silent for ever, each kind of wait once.

python hung_waits.py KIND [at the start]
torchrun --nproc-per-node 2 hung_waits.py rank_asleep
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from pauses import in_a_save
from zoo import Training

HANG_AT = 30
FOR_EVER_S = 1e6


def locked_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def join_of_a_hung_thread() -> None:
    thread = threading.Thread(target=locked_twice)
    thread.start()
    thread.join()


def fifo() -> None:
    os.mkfifo("nobody")
    open("nobody").close()


def unlinked_fifo() -> None:
    """Nobody can open it any more."""
    threading.Timer(1.0, os.unlink, ("nobody",)).start()
    fifo()


def fifo_in_a_save() -> None:
    in_a_save(lambda _: fifo(), 0.0)


def lock_held_at_fork() -> None:
    """The child waits for a lock whose holder was not forked with it."""
    lock, held = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(1.0)

    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    if not child:
        lock.acquire()
        os._exit(0)
    os.waitpid(child, 0)


def _of_a_worker(hang: Callable[[], None]) -> None:
    from torch.utils.data import DataLoader, Dataset

    class Stuck(Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> int:
            if index == 4:
                hang()
            return index

    for _ in DataLoader(Stuck(), batch_size=2, num_workers=2):
        pass


def worker_on_a_lock() -> None:
    _of_a_worker(locked_twice)


def worker_asleep() -> None:
    _of_a_worker(asleep)


def asleep() -> None:
    time.sleep(FOR_EVER_S)


def rank_asleep() -> None:
    import torch.distributed as dist
    from gloo_job import GlooJob

    job = GlooJob(None)
    for step in range(HANG_AT):
        job.train_step(step)
    if job.rank == 1:
        asleep()
    dist.barrier()


LIMITS_S: dict[Callable[[], None], float] = {
    locked_twice: 20.0,
    join_of_a_hung_thread: 20.0,
    unlinked_fifo: 20.0,
    fifo: 45.0,
    fifo_in_a_save: 45.0,
    lock_held_at_fork: 20.0,
    worker_on_a_lock: 20.0,
    worker_asleep: 75.0,
    asleep: 75.0,
    rank_asleep: 75.0,
}
"""From the last progress to the stall."""
EARLY_S = {20.0: 60.0, 45.0: 60.0, 75.0: 150.0}
HANGS = {one.__name__: (one, limit_s) for one, limit_s in LIMITS_S.items()}


def main() -> None:
    hang, _ = HANGS[sys.argv[1]]
    if hang is rank_asleep:
        rank_asleep()
    training = Training(0.05)
    for _ in range(1 if len(sys.argv) > 2 else HANG_AT):
        training.train_step()
    hang()


if __name__ == "__main__":
    main()
