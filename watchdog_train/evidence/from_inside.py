"""Stacks that a process writes itself, asked by us: no ptrace.

Two ways. The control page asks without any signal, on every system: the client's pulse thread
reads it once a second, and needs the interpreter lock to answer. The fault handler that the client
registered answers a signal, also while the interpreter lock is held in C. It may crash a process
whose threads run, so it is asked only before a kill, and only if the slot says that it is ready and
SigCgt has the bit.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from watchdog_train.client import layout
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import ProcessId
from watchdog_train.evidence.dumps import dumps
from watchdog_train.store.control import ControlPage
from watchdog_train.system.protocol import ProcessSystem

PULSE_ANSWERS_S = 2.5
"""The pulse thread reads the page once a second; a busy interpreter may delay it."""
HANDLER_ANSWERS_S = 1.5
_DUMP_CAP_BYTES = 4 << 20
_POLL_S = 0.01


class Asked:
    def __init__(self, slot_dir: str, who: ProcessId) -> None:
        self.who = who
        self.request: int | None = None
        """Number on the control page; None: it was asked by a signal."""
        self._slot_dir = slot_dir
        self._path = os.path.join(slot_dir, f"{who.pid}{layout.DUMP_SUFFIX}")
        self._old_bytes = size_of(self._path)
        self._before = self._old_bytes

    def is_answered(self) -> bool:
        """Whether the answer is complete, by the slot or by a file that has stopped growing."""
        if self.request is not None:
            words = slot_words(self._slot_dir, self.who)
            return words is not None and words[layout.W_DUMP_ANSWERED] >= self.request
        now = size_of(self._path)
        whole = now > self._old_bytes and now == self._before
        self._before = now
        return whole

    def text(self) -> str | None:
        """Text written since the request; None without any."""
        old_bytes = self._old_bytes
        try:
            with open(self._path, "rb") as file:
                if os.fstat(file.fileno()).st_size < old_bytes:
                    old_bytes = 0  # the client restarted its file, which had grown too long
                file.seek(old_bytes)
                return file.read(_DUMP_CAP_BYTES).decode("utf-8", "replace") or None
        except OSError:
            return None


def slot_words(slot_dir: str | None, who: ProcessId) -> tuple[int, ...] | None:
    """The words of the slot; None if unreadable or of an earlier process with this pid."""
    if slot_dir is None:
        return None
    path = os.path.join(slot_dir, f"{who.pid}{layout.SLOT_SUFFIX}")
    try:
        with open(path, "rb") as file:
            words = struct.unpack(f"={layout.SLOT_WORDS}Q", file.read(layout.SLOT_WORDS * 8))
    except (OSError, struct.error):
        return None
    if words[layout.W_MAGIC] != layout.MAGIC or words[layout.W_PID] != who.pid:
        return None
    return words if words[layout.W_START] in (0, who.start) else None


def ask_by_signal(system: ProcessSystem, slot_dir: str, who: ProcessId) -> Asked | str:
    """Send the signal that the client registered; the reason if that failed."""
    words = slot_words(slot_dir, who)
    number = words[layout.W_FAULT_HANDLER] if words is not None else 0
    if not 0 < number < 128:
        return "no fault handler is registered in it"
    if system.handles_signal(who.pid, number) is not True:
        return "its fault handler is not in place any more"
    asked = Asked(slot_dir, who)
    result = system.send_signal(who, number)
    return asked if result == "sent" else f"the fault-handler signal was not sent ({result})"


def ask_by_page(slot_dir: str, targets: list[ProcessId]) -> dict[int, Asked] | str:
    """One request on the control page, for all processes of the run; those with a slot, by pid."""
    heard = [who for who in targets if slot_words(slot_dir, who) is not None]
    if not heard:
        return "it has no slot, so it does not read the control page"
    try:
        with ControlPage.open(Path(slot_dir) / layout.CONTROL_FILE) as page:
            asked = {who.pid: Asked(slot_dir, who) for who in heard}
            number = page.request_dump()
            for one in asked.values():
                one.request = number
    except (OSError, ValueError) as error:
        return f"the control page cannot be written ({error})"
    return asked


def wait_for(asked: list[Asked], until: float) -> None:
    """Until all have answered, at most until then (monotonic)."""
    while time.monotonic() < until and not all(one.is_answered() for one in asked):
        time.sleep(_POLL_S)


def size_of(path: str) -> int:
    """0 for a file that is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def parse(text: str) -> tuple[ThreadStack, ...] | None:
    """The threads in a faulthandler dump, main thread (printed last) marked; None if none."""
    found = [dump for dump in dumps(text) if dump.how == "fault handler"]
    return found[-1].threads if found else None
