"""The faults of the night, each once: three hangs and a crash, at the steps in NIGHT_FAULTS.

NIGHT_FAULTS is JSON: {"once": FOLDER, "tracker": PORT, "faults": [{"kind", "rank", "step"}]}. A
file in the folder says that a fault has struck: the next attempt passes its step in peace.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

TRAINER = "transformers.trainer"


def begin() -> None:
    """Wait for the Trainer to be imported."""
    sys.meta_path.insert(0, Finder())


class Finder:
    """Puts a callback among those that every Trainer has, once its module is there."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                run(module)
                module.DEFAULT_CALLBACKS.append(faults_of_this_rank())

            spec.loader.exec_module = exec_module
        return spec


def faults_of_this_rank():  # type: ignore[no-untyped-def]
    """The class of a callback; made late, because its base is part of what is imported."""
    from transformers import TrainerCallback

    told = json.loads(os.environ["NIGHT_FAULTS"])
    rank = int(os.environ.get("RANK", "0"))
    mine = {fault["step"]: fault["kind"] for fault in told["faults"] if fault["rank"] == rank}
    once = Path(told["once"])

    def strikes(step, *kinds):  # type: ignore[no-untyped-def]
        kind = mine.get(step)
        if kind not in kinds:
            return None
        try:
            (once / kind).touch(exist_ok=False)
        except FileExistsError:
            return None
        return kind

    class NightFaults(TrainerCallback):
        def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):  # type: ignore[no-untyped-def]
            if strikes(state.global_step, "lock-at-fork"):
                hold_while_workers_are_forked(train_dataloader.dataset.lock)

        def on_step_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
            kind = strikes(state.global_step, "other-collective", "tracker", "killed")
            if kind == "other-collective":
                gather_on_this_rank_only()
            elif kind == "tracker":
                ask_tracker(told["tracker"])
            elif kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)

    return NightFaults


def hold_while_workers_are_forked(lock: threading.Lock) -> None:
    """A thread that tidies the cache has its lock at the fork of the workers: theirs stays held."""
    held = threading.Event()

    def tidy() -> None:
        with lock:
            held.set()
            time.sleep(1.0)

    threading.Thread(target=tidy, daemon=True).start()
    held.wait()


def gather_on_this_rank_only() -> None:
    """A metric that one rank gathers, and the other does not."""
    import torch
    import torch.distributed as dist

    values = [torch.zeros(8) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.zeros(8))


def ask_tracker(port: int) -> None:
    """An experiment tracker that takes the connection and never answers; without a time-out."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /runs HTTP/1.1\r\nHost: tracker\r\nContent-Length: 0\r\n\r\n")
        connection.recv(1024)
