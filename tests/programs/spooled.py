"""A training that submits its successor to a spooler, which starts jobs as at and tsp do.

spooled.py spool SOCKET            starts what it is sent, with the environment of whoever sent it
spooled.py train SOCKET COMMAND... trains until the file `end` is there; at step 5 submits COMMAND

A training appends `NAME begins` and `NAME ends` to journal.txt, with the attempt that wtrain says.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def spool(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        jobs = []
        while True:
            with server.accept()[0] as client, client.makefile("r") as asked:
                job = json.loads(asked.readline())
                quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                jobs.append(subprocess.Popen(**job, **quiet, start_new_session=True))
                client.sendall(b"%d\n" % jobs[-1].pid)


def submit(path: str, command: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as client, client.makefile("r") as answer:
        client.connect(path)
        job = {"args": command, "env": dict(os.environ), "cwd": os.getcwd()}
        client.sendall(json.dumps(job).encode() + b"\n")
        Path("job.tmp").write_text(answer.readline())
    os.rename("job.tmp", "job.pid")


def train(path: str, command: list[str]) -> None:
    import watchdog_train

    name = "training" if command else "successor"
    with open("journal.txt", "a") as journal:
        print(name, "begins in attempt", watchdog_train.attempt(), file=journal, flush=True)
        Path("saves").mkdir(exist_ok=True)
        held = open(f"saves/{name}", "w")  # noqa: SIM115 - as a logger has it
        step = 0
        while not Path(f"{name}.end").exists():
            step += 1
            watchdog_train.beat(step=step)
            if command and step == 5:
                submit(path, command)
            time.sleep(0.02)
        print(name, "ends", file=journal)
        held.close()


if __name__ == "__main__":
    if sys.argv[1] == "spool":
        spool(sys.argv[2])
    else:
        train(sys.argv[2], sys.argv[3:])
