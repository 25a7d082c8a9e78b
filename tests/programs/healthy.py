"""Healthy, and looks like a hang after 20 of 40 steps: healthy.py KIND.

The work lasts LONG_S seconds, and nothing tells of its progress.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from zoo import Training, ready

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog")
LONG_S = float(os.environ.get("LONG_S", "12"))
UNTIL = 0.0


def goes_on() -> bool:
    return time.monotonic() < UNTIL


def long_matmul(_: Training) -> None:
    """One long step: matrices, and no line of Python that could beat."""
    matrix = torch.randn(400, 400)
    while goes_on():
        matrix = torch.nn.functional.normalize(matrix @ matrix)


def long_eval(training: Training) -> None:
    """A long evaluation between training steps, batches without a gradient."""
    training.model.eval()
    matrix = torch.randn(300, 300)
    with torch.no_grad():
        while goes_on():
            for (batch,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8):
                training.model(batch)
                for _ in range(200):
                    matrix = torch.nn.functional.normalize(matrix @ matrix)
    training.model.train()


def many_children(_: Training) -> None:
    """The main process waits while hundreds of children of a moment each do the work."""
    while goes_on():
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        time.sleep(0.1)


def tokenise(seed: int) -> int:
    until = time.monotonic() + 0.2
    count = seed
    while time.monotonic() < until:
        count += sum(map(ord, WORDS[count % len(WORDS)]))
    return count


def tokenise_processes(_: Training) -> None:
    """Text is tokenised by a pool of processes that live for a short time each."""
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        while goes_on():
            pool.map(tokenise, range(4), chunksize=1)


def serve(server: socket.socket) -> None:
    """Sends 1,000 bytes every tenth of a second, then closes."""
    connection, _ = server.accept()
    while goes_on():
        connection.sendall(bytes(1_000))
        time.sleep(0.1)
    connection.close()


def slow_download(_: Training) -> None:
    """A download at 10 kB/s from a local server process."""
    server = socket.create_server(("127.0.0.1", 0))
    helper = multiprocessing.get_context("fork").Process(target=serve, args=(server,))
    helper.start()
    client = socket.create_connection(server.getsockname())
    while client.recv(65536):
        pass
    helper.join()


class SlowFile:
    """A file on a slow disk: about 200 kB/s reach it, whatever the writer wants."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by its reader
        self.flush, self.close = self.file.flush, self.file.close

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), 20_000):
            self.file.write(view[begin : begin + 20_000])
            os.fsync(self.file.fileno())
            time.sleep(0.1)
        return len(view)


def big_save(_: Training) -> None:
    """One save that takes long, because the disk is slow."""
    file = SlowFile("big.pt")
    torch.save({"weights": torch.zeros(int(LONG_S * 200_000 / 4))}, file)
    file.close()


def stopped(_: Training) -> None:
    """Stopped (SIGSTOP), as by a job-control key or another tool."""
    print("stopping myself", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_input(_: Training) -> None:
    """Waits for a person to answer a question on standard input."""
    try:
        answer = input("go on? [y/n] ")
    except EOFError:
        answer = "no input"
    print(f"answer: {answer}", flush=True)


if __name__ == "__main__":
    training = Training(0.05)
    training.train(20)
    ready()
    UNTIL = time.monotonic() + LONG_S
    globals()[sys.argv[1]](training)
    training.train(40)
    training.finish()
