"""Stacks through the fault handler that the client registered: no ptrace, works with the GIL held.

The signal goes only to a process whose slot says that it is ready and whose SigCgt has the bit.
"""

from __future__ import annotations

import os
import re
import struct
import time

from watchdog_train.client import layout
from watchdog_train.core.model import ProcessId
from watchdog_train.core.stacks import FRAMES_CAP, THREADS_CAP, Frame, ThreadStack, printable
from watchdog_train.system.protocol import ProcessSystem

_DUMP_CAP_BYTES = 4 << 20
_POLL_S = 0.01
_FRAME = re.compile(
    r'  File "(?P<file>[^"\n]{0,4096})", line (?P<line>\d{1,9}) in (?P<name>[^\n]*)'
)
_HEAD = re.compile(r"(?:Current thread|Thread) (?P<id>0x[0-9a-fA-F]{1,16})(?P<rest>[^\n]{0,200})")
_THREAD_NAME = re.compile(r"\[(?P<name>[^\]\n]{0,100})\]")


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
    threads: list[ThreadStack] = []
    name: str | None = None
    frames: list[Frame] = []
    open_thread = False
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            if open_thread:
                threads.append(ThreadStack(frames=tuple(frames), name=name))
            named = _THREAD_NAME.search(head["rest"])
            name, frames, open_thread = printable(named["name"]) if named else None, [], True
            continue
        found = _FRAME.match(line)
        if found and open_thread and len(frames) < FRAMES_CAP:
            frames.append(
                Frame(
                    function=printable(found["name"]),
                    file=printable(found["file"]),
                    line=int(found["line"]),
                )
            )
    if open_thread:
        threads.append(ThreadStack(frames=tuple(frames), name=name))
    if not threads:
        return None
    last = threads[-1]
    threads[-1] = ThreadStack(frames=last.frames, name=last.name or "MainThread", main=True)
    return tuple(threads[-THREADS_CAP:])
