"""What the training's own interpreter can do: its fault handler."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from watchdog_train.doctor import Check

ANSWER_S = 15.0
_HANDLER = """\
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGURG, file=sys.stdout, all_threads=True)
print("ready", flush=True)
time.sleep(60)
"""


def fault_handler(python: str) -> Check:
    """Really have it write its stack at a signal, which is the way without ptrace."""
    name = "fault handler"
    if sys.platform == "win32":
        says = "no such signal on Windows: stacks come by a page that the training reads"
        return Check(name=name, status="unknown", says=says)
    try:
        child = subprocess.Popen(
            [python, "-S", "-c", _HANDLER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        says = f"{python} cannot be started: {error.strerror}"
        return Check(name=name, status="failure", says=says, mend="name it with --python")
    until = time.monotonic() + ANSWER_S
    try:
        if b"ready" not in _read_until(child, b"ready", until):
            says = f"{python} did not begin within {ANSWER_S:.0f} s"
            return Check(name=name, status="warning", says=says, mend="name another with --python")
        child.send_signal(signal.SIGURG)
        answered = b"File" in _read_until(child, b"File", until)
    finally:
        child.kill()
        child.wait(5)
        if child.stdout is not None:
            child.stdout.close()
    if answered:
        return Check(name=name, status="ok", says="a process writes its own stack at SIGURG")
    mend = "py-spy has to do it alone; a container may filter the signal"
    return Check(name=name, status="warning", says="no stack came at SIGURG", mend=mend)


def _read_until(child: subprocess.Popen[bytes], word: bytes, until: float) -> bytes:
    data = b""
    if child.stdout is None:
        return data
    descriptor = child.stdout.fileno()
    while word not in data and (left_s := until - time.monotonic()) > 0 and len(data) < 65536:
        ready, _, _ = select.select([descriptor], [], [], left_s)
        part = os.read(descriptor, 4096) if ready else b""
        if not part:
            break
        data += part
    return data
