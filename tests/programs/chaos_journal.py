"""What the trainings of the campaign of faults share: a journal, planted trouble, and idling."""

from __future__ import annotations

import os
import signal
import threading
import time


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


class Journal:
    """Lines `attempt pid rank word step`, each one write: what the campaign believes."""

    def __init__(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.descriptor = os.open(os.environ.get("CHAOS_JOURNAL", "journal.txt"), flags, 0o600)
        self.head = f"{os.environ.get('WTRAIN_ATTEMPT', '0')} {os.getpid()}"
        self.head += f" {os.environ.get('RANK', '0')}"

    def note(self, word: str, step: int, *more: object) -> None:
        line = " ".join(map(str, (self.head, word, step, *more)))
        os.write(self.descriptor, f"{line}\n".encode())


class Trouble:
    """What goes wrong by itself, once, at a step."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at = kind, at

    def strike(self, step: int) -> None:
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
