"""A script that starts daemons of every kind, some for itself and some for its user, and crashes.

Writes the pid of each into pids.json, waits for a file `go`, and exits with 3; the second attempt
succeeds at once. It needs no torch.
"""

from __future__ import annotations

import json
import mmap
import os
import pty
import socket
import subprocess
import sys
import time
from _multiprocessing import SemLock
from pathlib import Path
from typing import Any

SLEEP = "import time; time.sleep(1e6)"
SERVE = """
import socket, time
server = socket.socket(socket.AF_UNIX)
server.bind("server.sock")
server.listen()
held = [server.accept() for _ in range(9)]
"""
LISTEN = f"""
import socket, sys, time
server = socket.socket()
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
{SLEEP}
"""
WINDOWS = f"""
import os, pty, sys, time
if pty.fork()[0] == 0:
    os.execv(sys.executable, [sys.executable, "-S", "-c", {SLEEP!r}, "window"])
{SLEEP}
"""
MAPS = f"""
import mmap, sys
shared = mmap.mmap(int(sys.argv[1]), 4096)
import os; os.close(int(sys.argv[1]))
{SLEEP}
"""
WRITES = f"""
import sys
file = open(sys.argv[1], "a")
{SLEEP}
"""

pids: dict[str, int] = {}


def daemon(name: str, code: str, *words: str, **streams: Any) -> None:
    """A process in a session of its own, which has nothing of ours but what `streams` says."""
    settled = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, "-S", "-c", code, *words]
    options: dict[str, Any] = {"start_new_session": True, **settled, **streams}
    pids[name] = subprocess.Popen(command, **options).pid


def main() -> None:
    if Path("pids.json").exists():
        return
    name = sys.argv[1]
    # It opens the first one, makes the others, and removes none, as a killed training does.
    semaphores = [SemLock._rebuild(0, 1, 1, f"{name}-older")]
    semaphores += [SemLock(1, 1, 1, f"{name}-{kind}", False) for kind in ("own", "shared")]
    # For the user.
    daemon("plain", SLEEP)
    with open("own.log", "wb") as log:
        daemon("own log", SLEEP, stdout=log, stderr=log)
    daemon("served", SERVE)
    daemon("windows", WINDOWS)
    daemon("named", SLEEP, "please-leave", stdout=None)
    # For the training.
    held: list[Any] = []
    daemon("pipe", SLEEP, stdin=subprocess.PIPE)
    ours, theirs = socket.socketpair()
    daemon("socket", SLEEP, stdin=theirs)
    theirs.close()
    memory = os.memfd_create("shared")
    os.ftruncate(memory, 4096)
    held.append(mmap.mmap(memory, 4096))
    daemon("memory", MAPS, str(memory), pass_fds=(memory,))
    daemon("output", SLEEP, stderr=None)
    journal = os.fsdecode(b"journal-\xff")  # names need not be UTF-8
    held.append(os.open(journal, os.O_WRONLY | os.O_CREAT))
    daemon("file", WRITES, journal)
    Path("saves").mkdir()
    daemon("checkpoint", WRITES, "saves/model.pt")
    daemon("port", LISTEN, os.environ["MASTER_PORT"])
    master, slave = pty.openpty()
    daemon("terminal", SLEEP, stdin=slave, stdout=slave, stderr=slave)
    daemon("taken", SLEEP, "please-take")
    daemon("manager", SLEEP, "torch_shm_manager")  # which makes a session of its own
    pids["copy"] = os.fork()
    if pids["copy"] == 0:
        os.setsid()
        os.closerange(0, 64)
        for number in range(3):
            assert os.open(os.devnull, os.O_RDWR) == number
        while True:
            time.sleep(60)
    Path("pids.tmp").write_text(json.dumps(pids), encoding="ascii")
    os.rename("pids.tmp", "pids.json")
    while not Path("go").exists():
        time.sleep(0.05)
    print(len(held), len(semaphores), ours, master)
    os._exit(3)


if __name__ == "__main__":
    main()
