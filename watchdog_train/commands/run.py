"""The process that runs commands: `python -m watchdog_train.commands.run ORDER-FILE`.

The deadline of a command holds for its descendants, too. At the deadline each of them is killed, by
its pid and start time. On Linux this process adopts descendants whose parent has exited, so they
are found; elsewhere they are not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
import psutil

from watchdog_train.commands import ORDER_CAP_BYTES, Order
from watchdog_train.core.events import CommandResult
from watchdog_train.core.model import Why
from watchdog_train.evidence.redact import redact_data, redact_text
from watchdog_train.system import current
from watchdog_train.whole_files import replace_json, take_json

TAIL_BYTES = 4096
"""Kept of each command's output; the rest is read and dropped, so that no command blocks."""
OUTPUT_CHARACTERS = 500
TERM_S = 2.0
"""From SIGTERM to SIGKILL."""
KILL_S = 3.0
LOOK_S = 0.05


def run_all(order: Order) -> tuple[CommandResult, ...]:
    """One after another; a failure does not stop the next one."""
    payload = msgspec.json.encode(redact_data(order.event)) + b"\n"
    return tuple(_run(number, text, payload, order) for number, text in order.commands)


def _run(number: int, text: str, payload: bytes, order: Order) -> CommandResult:
    began = time.monotonic()
    until = began + order.deadline_s
    tail = _Tail()
    try:
        # A file, not a pipe: a command that does not read its stdin must not get SIGPIPE or hang.
        with tempfile.TemporaryFile() as stdin:
            stdin.write(payload)
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S602 - the user's own command, for the shell
                text,
                shell=True,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=order.cwd if os.path.isdir(order.cwd) else None,
            )
    except (OSError, ValueError) as error:
        why = Why("could-not-start", problem=type(error).__name__)
        return CommandResult(number=number, ok=False, why=why, seconds=0.0)
    if process.stdout is not None:
        tail.follow(process.stdout)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, until - time.monotonic()))
    while _descendants() and time.monotonic() < until:
        time.sleep(LOOK_S)
    code = process.poll()
    late = len(_descendants())
    if late:
        _end_descendants()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
    problem = _why(code, late, order.deadline_s)
    return CommandResult(
        number=number,
        ok=problem is None,
        code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        why=problem,
        seconds=round(time.monotonic() - began, 2),
        output=tail.text(),
    )


def _why(code: int | None, late: int, deadline_s: float) -> Why | None:
    if code is None:
        return Why("not-ended-killed", limit_s=deadline_s)
    told = Why("exited", exit=code if code >= 0 else None, signal=-code if code < 0 else None)
    if late:
        left = Why("left-killed", limit_s=deadline_s)
        return told.plus(left) if code else left
    return told if code else None


class _Tail:
    """The end of an output; reads until its last writer has closed it."""

    def __init__(self) -> None:
        self._kept = b""
        self._thread: threading.Thread | None = None

    def follow(self, stream: IO[bytes]) -> None:
        def read() -> None:
            with suppress(OSError, ValueError):
                while data := os.read(stream.fileno(), 65536):
                    self._kept = (self._kept + data)[-TAIL_BYTES:]

        self._thread = threading.Thread(target=read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        if self._thread is not None:
            self._thread.join(0.5)
        text = self._kept.decode("utf-8", "replace")
        lines = ["".join(c if c.isprintable() else " " for c in line) for line in text.splitlines()]
        return redact_text("\n".join(lines).strip())[-OUTPUT_CHARACTERS:]


def _descendants() -> list[psutil.Process]:
    """Our living descendants. Init reaps the dead, as we exit soon, too."""
    living = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if each.status() != psutil.STATUS_ZOMBIE:
                living.append(each)
    return living


def _end_descendants() -> None:
    """SIGTERM, a moment, SIGKILL, until none is left; psutil compares start times each time."""
    for each in _descendants():
        with suppress(psutil.Error):
            each.terminate()
    until = time.monotonic() + TERM_S
    while _descendants() and time.monotonic() < until:
        time.sleep(LOOK_S)
    until = time.monotonic() + KILL_S
    while (left := _descendants()) and time.monotonic() < until:
        for each in left:
            with suppress(psutil.Error):
                each.kill()
        time.sleep(LOOK_S)


def _reap() -> None:
    """Reap exited orphans: where init reaps none, a zombie stays for good."""
    if sys.platform != "win32":
        for child in psutil.Process().children():
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def main(argv: list[str]) -> int:
    order = take_json(Path(argv[0]), Order, cap_bytes=ORDER_CAP_BYTES)
    current().become_subreaper()
    results = run_all(order)
    _reap()
    replace_json(Path(order.out), results)
    os._exit(0)  # a thread that still reads must not hold us


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
