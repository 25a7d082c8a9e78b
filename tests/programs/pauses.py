"""Healthy: a training that pauses once, or again and again, and goes on by itself.

    python pauses.py KIND SECONDS
    torchrun --nproc-per-node 2 pauses.py KIND_of_two_ranks SECONDS

What a pause waits for is made by a process or a thread that this program starts before it.
"""

from __future__ import annotations

import asyncio
import fcntl
import http.server
import json
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable

from zoo import Training

STEPS = 60
PAUSE_AT = 30
OUTSIDER = (sys.executable, "-S", "-c")


def outsider(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A process that is no part of the training: a shared file system's other users, a service."""
    return subprocess.Popen([*OUTSIDER, code, *map(str, arguments)], start_new_session=True)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def sleep_each_epoch(seconds: float) -> None:
    """Cool-down of a third between two epochs."""
    time.sleep(seconds / 3)


def poll_for_file(seconds: float) -> None:
    threading.Timer(seconds, lambda: open("made", "w").close()).start()
    while not os.path.exists("made"):
        time.sleep(0.5)


class Judge(http.server.BaseHTTPRequestHandler):
    """Answers after the pause."""

    seconds = 0.0

    def do_GET(self) -> None:
        time.sleep(self.seconds)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def _serve(seconds: float, port: multiprocessing.Value) -> None:
    os.setsid()
    Judge.seconds = seconds
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    port.value = server.server_address[1]
    server.serve_forever()


def _judge(seconds: float) -> str:
    port = multiprocessing.Value("i", 0)
    multiprocessing.Process(target=_serve, args=(seconds, port), daemon=True).start()
    while not port.value:
        time.sleep(0.05)
    return f"http://127.0.0.1:{port.value}/"


def judge(seconds: float) -> None:
    with urllib.request.urlopen(_judge(seconds)) as answer:
        json.load(answer)


def judge_in_evaluation(seconds: float) -> None:
    import torch

    with torch.no_grad():
        judge(seconds)


def async_judges(seconds: float) -> None:
    async def ask() -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await reader.read()
        writer.close()

    async def ask_all() -> None:
        await asyncio.gather(*(ask() for _ in range(4)))

    host, port = _judge(seconds).removeprefix("http://").rstrip("/").split(":")
    address = (host, int(port))
    asyncio.run(ask_all())


def child(seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


def pipe(seconds: float) -> None:
    command = ["sh", "-c", f"sleep {seconds}; echo 1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()


def writing_to_a_pipe(seconds: float) -> None:
    """An uploader that is slow to take what a save gives it."""
    command = ["sh", "-c", f"sleep {seconds}; cat >/dev/null"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(bytes(4 << 20))
        process.stdin.close()


def queue_of_a_thread(seconds: float) -> None:
    batches: queue.Queue[int] = queue.Queue()
    threading.Timer(seconds, batches.put, (1,)).start()
    batches.get()


def event_of_a_thread(seconds: float) -> None:
    done = threading.Event()

    def remote() -> None:
        with urllib.request.urlopen(_judge(seconds)):
            done.set()

    threading.Thread(target=remote, daemon=True).start()
    while not done.wait(1.0):
        pass


def pool(seconds: float) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        workers.map(time.sleep, [seconds, seconds / 2])


def slow_batch(seconds: float) -> None:
    """Workers that read from a store which answers late."""
    from torch.utils.data import DataLoader, Dataset

    class Remote(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 2:
                time.sleep(seconds)
            return index

    for _ in DataLoader(Remote(), batch_size=2, num_workers=2):
        pass


def retries(seconds: float) -> None:
    """Too many requests: each wait longer than the one before."""
    until, wait = time.monotonic() + seconds, 2.0
    while time.monotonic() < until:
        time.sleep(min(wait, max(0.1, until - time.monotonic())))
        wait *= 2


def flock(seconds: float) -> None:
    code = """
import fcntl, sys, time
with open("lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    open("locked", "w").close()
    time.sleep(float(sys.argv[1]))
"""
    outsider(code, seconds)
    while not os.path.exists("locked"):
        time.sleep(0.05)
    with open("lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def fifo(seconds: float) -> None:
    """A stage before this one that has the file open and writes late."""
    os.mkfifo("batches")
    outsider(
        "import sys, time; file = open('batches', 'w'); time.sleep(float(sys.argv[1]))", seconds
    )
    with open("batches") as file:
        file.read()


def message_of_a_service(seconds: float) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        code = """
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    time.sleep(float(sys.argv[2]))
    connection.sendall(b"go")
"""
        outsider(code, listener.getsockname()[1], seconds)
        connection, _ = listener.accept()
        with connection:
            select.select([connection], [], [])
            connection.recv(2)


def listener(seconds: float) -> None:
    """It is the one who is connected to."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        code = "import socket, sys, time; time.sleep(float(sys.argv[2]));"
        code += "socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
        outsider(code, server.getsockname()[1], seconds)
        server.accept()


def a_signal(seconds: float) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.pause()


PAUSES: dict[str, Callable[[float], None]] = {
    one.__name__: one
    for one in (
        sleep, sleep_each_epoch, poll_for_file, judge, judge_in_evaluation, async_judges, child,
        pipe, writing_to_a_pipe, queue_of_a_thread, event_of_a_thread, pool, slow_batch, retries,
        flock, fifo, message_of_a_service, listener, a_signal,
    )
}  # fmt: skip


def in_a_save(pause: Callable[[float], None], seconds: float) -> None:
    """torch.save into a file whose first write takes so long."""
    import torch

    class Slow:
        paused = False

        def write(self, data: bytes) -> int:
            if not self.paused:
                self.paused = True
                pause(seconds)
            return len(data)

        def flush(self) -> None:
            """Nothing is kept."""

    torch.save({"weight": torch.zeros(8)}, Slow())


def of_two_ranks(kind: str, seconds: float) -> None:
    """Rank 0, or rank 1, does what the other waits for in a collective."""
    import torch.distributed as dist
    from gloo_job import GlooJob

    job = GlooJob(None)
    for step in range(STEPS):
        if step == PAUSE_AT:
            if kind == "rank_0_waits_for_file" and job.rank == 0:
                poll_for_file(seconds)
            elif kind == "rank_1_is_late" and job.rank == 1:
                child(seconds)
            elif kind == "rank_0_evaluates" and job.rank == 0:
                judge_in_evaluation(seconds)
            dist.barrier()
        job.train_step(step)
    dist.destroy_process_group()


TWO_RANKS = ("rank_0_waits_for_file", "rank_1_is_late", "rank_0_evaluates")
STARTS = ("before_torch", "server_at_the_start")


def main() -> None:
    kind, seconds = sys.argv[1], float(sys.argv[2])
    if kind in TWO_RANKS:
        of_two_ranks(kind, seconds)
        return
    if kind == "before_torch":
        poll_for_file(seconds)
    training = Training(0.05)
    if kind == "server_at_the_start":
        judge(seconds)
    every = STEPS // 4 if kind == "sleep_each_epoch" else PAUSE_AT
    while training.step < STEPS:
        training.train_step()
        if training.step % every == 0 and training.step < STEPS:
            if kind.startswith("save_"):
                in_a_save(PAUSES[kind.removeprefix("save_")], seconds)
            elif kind in PAUSES:
                PAUSES[kind](seconds)
    print(f"finished step={training.step}", flush=True)


if __name__ == "__main__":
    main()
