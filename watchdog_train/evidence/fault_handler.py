"""Stacks through the fault handler that the client registered: no ptrace, works with the GIL held.

The signal goes only to a process whose slot says that it is ready and whose SigCgt has the bit.
"""

from __future__ import annotations

import os
import struct
import time

from watchdog_train.client import layout
from watchdog_train.core.model import ProcessId
from watchdog_train.core.stacks import ThreadStack
from watchdog_train.evidence.text.reader import read_text
from watchdog_train.system.protocol import ProcessSystem

_DUMP_CAP_BYTES = 4 << 20
_POLL_S = 0.01


def registered_signal(slot_dir: str, who: ProcessId) -> int | None:
    """The signal that makes this very process dump its stacks, as its slot says."""
    path = os.path.join(slot_dir, f"{who.pid}{layout.SLOT_SUFFIX}")
    try:
        with open(path, "rb") as file:
            words = struct.unpack(f"={layout.SLOT_WORDS}Q", file.read(layout.SLOT_WORDS * 8))
    except (OSError, struct.error):
        return None
    if words[layout.W_MAGIC] != layout.MAGIC or words[layout.W_PID] != who.pid:
        return None
    if words[layout.W_START] not in (0, who.start):
        return None
    number = words[layout.W_FAULT_HANDLER]
    return number if 0 < number < 128 else None


def request(system: ProcessSystem, slot_dir: str, who: ProcessId) -> tuple[str, int] | str:
    """Sends the signal. The dump file and how much of it is old, or why not in words."""
    number = registered_signal(slot_dir, who)
    if number is None:
        return "no fault handler is registered in it"
    if system.handles_signal(who.pid, number) is not True:
        return "its fault handler is not in place any more"
    path = os.path.join(slot_dir, f"{who.pid}{layout.DUMP_SUFFIX}")
    old_bytes = size_of(path)
    result = system.send_signal(who, number)
    if result != "sent":
        return f"the fault-handler signal was not sent ({result})"
    return path, old_bytes


def size_of(path: str) -> int:
    """0 for a file that is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def answer(path: str, old_bytes: int, until: float) -> str | None:
    """What the handler wrote, once it stops growing; None when nothing came by `until`."""
    before = old_bytes
    while time.monotonic() < until:
        now = size_of(path)
        if now > old_bytes and now == before:
            break
        before = now
        time.sleep(_POLL_S)
    try:
        with open(path, "rb") as file:
            file.seek(old_bytes)
            return file.read(_DUMP_CAP_BYTES).decode("utf-8", "replace") or None
    except OSError:
        return None


def parse(text: str) -> tuple[ThreadStack, ...] | None:
    """The threads in a faulthandler dump, main thread (printed last) marked; None if none."""
    dumps = [dump for dump in read_text(text).dumps if dump.tool == "fault handler"]
    return dumps[-1].threads if dumps else None
