"""What the trainings of the campaign of faults share: a journal, planted trouble, and idling."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

SLEEP = "import time; time.sleep(1e6)"
AGENT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
LOUD_LINE = "loud {:012d} " + "." * 81 + "\n"


def idle_if_asked() -> None:
    """With CHAOS_IDLE: wait until killed, and note in that file which signals have come.

    So a process can have the command line of a training without being one.
    """
    path = os.environ.get("CHAOS_IDLE")
    if not path:
        return
    heard = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup was meant
            signal.signal(number, lambda number, _frame: os.write(heard, b"%d\n" % number))
    if "CHAOS_SUPERVISED" in os.environ:
        import watchdog_train as wt

        wt.phase("idle")  # never judged
    os.write(heard, b"ready\n")
    while True:
        time.sleep(60)


def leave_starter_if_asked() -> None:
    """With CHAOS_DAEMONIZE: a daemon trains, and the process that was started ends with 0."""
    if os.environ.get("CHAOS_DAEMONIZE"):
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)


def save_and_rename(path: str, write: Callable[[str], None]) -> None:
    """With CHAOS_RENAME a save has another name until it is whole: its folder, or its file."""
    how = os.environ.get("CHAOS_RENAME")
    folder, suffix = os.path.splitext(path)
    os.makedirs(f"{folder}.part" if how == "folder" else os.path.dirname(path), exist_ok=True)
    if how == "folder":
        write(f"{folder}.part/model{suffix}")
        os.rename(f"{folder}.part", folder)
    elif how == "file":
        write(f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    else:
        write(path)


def file_of(path: str) -> str:
    """What was saved, where a whole folder is given."""
    inside = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else []
    return inside[0] if inside else path


class Journal:
    """Lines `attempt pid rank word number`, each one write: what the campaign believes.

    With CHAOS_LOUD so many lines are printed at every step, and copied to loud.txt. With
    CHAOS_BESIDE processes are left beside the training, and noted.
    """

    def __init__(self) -> None:
        path = os.environ.get("CHAOS_JOURNAL", "journal.txt")
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        rank = os.environ.get("RANK", "0")
        self.head = f"{os.environ.get('WTRAIN_ATTEMPT', '0')} {os.getpid()} {rank}"
        # Forks do not inherit such a lock: only a second training can hold it.
        self.lock = open(f"{path}.{rank}.lock", "w")  # noqa: SIM115 - until this process ends
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.note("twin", 0)
        self.loud = int(os.environ.get("CHAOS_LOUD", "0"))
        for kind in os.environ.get("CHAOS_BESIDE", "").split():
            self.leave(kind)

    def note(self, word: str, number: int, *more: object) -> None:
        line = " ".join(map(str, (self.head, word, number, *more)))
        os.write(self.descriptor, f"{line}\n".encode())
        if word == "step" and self.loud:
            first = number * self.loud
            lines = "".join(map(LOUD_LINE.format, range(first, first + self.loud)))
            data = memoryview(lines.encode())
            while data:
                data = data[os.write(1, data) :]
            with open("loud.txt", "a", encoding="ascii") as file:
                file.write(lines)

    def leave(self, kind: str) -> None:
        """A process in a session of its own, with no pipe and no file of ours."""
        if kind == "nohup":
            null = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            words = ["nohup", sys.executable, "-S", "-c", SLEEP]
            self.note(kind, subprocess.Popen(words, start_new_session=True, **null).pid)
            return
        if os.fork():
            os.wait()
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        self.note(kind, os.getpid())
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.closerange(3, 1024)
        if kind == "agent":  # else a fork that never becomes another program
            name = f"agent-{os.getpid()}.socket"
            os.execv(sys.executable, [sys.executable, "-S", "-c", AGENT + SLEEP, name])
        while True:
            time.sleep(60)


class Trouble:
    """What goes wrong by itself, once, at a step; and checkpoints that are whole but no use."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at = kind, at
        self.nan_at: int | None = None

    def taken(self, path: str | None, journal: Journal) -> str | None:
        """What the training really loads of this checkpoint; asked before it loads.

        Raises:
            RuntimeError: the file useless.json says that this version of it does not load.
        """
        if not path or os.path.exists("ignores-checkpoints"):
            return None
        if not os.path.exists("useless.json"):
            return path
        with open("useless.json", encoding="utf-8") as file:
            useless = json.load(file)
        if useless.get(os.path.basename(path)) != os.stat(path).st_mtime_ns:
            return path
        step = int(path.rpartition("-")[2].partition(".")[0])
        journal.note("useless", step)
        if useless["how"] == "crash":
            raise RuntimeError("Error(s) in loading state_dict: size mismatch for weights")
        self.nan_at = step + 2
        return path

    def strike(self, step: int) -> None:
        if self.nan_at is not None and step >= self.nan_at:
            raise FloatingPointError("loss is nan")
        if self.kind == "none" or step < self.at:
            return
        try:
            os.close(os.open("trouble-was-had", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.kind == "crash":
            raise RuntimeError("planted failure")
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
