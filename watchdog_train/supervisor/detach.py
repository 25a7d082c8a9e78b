"""`-d`: the supervisor in a session of its own, the command back once training is launched."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from watchdog_train.core.model import Value
from watchdog_train.errors import EXIT_OUR_BUG, WtrainError
from watchdog_train.supervisor.resources import refuse_few_tasks

if TYPE_CHECKING:
    from watchdog_train.supervisor.setup import RunSession

REPORT_WITHIN_S = 60.0
REPORT_CAP_BYTES = 65536


class Report(Value):
    """Sent once from the detached supervisor to the command that started it."""

    code: int
    words: str
    """For stdout when launched, for stderr when refused."""
    run_dir: str | None = None
    """Only when launched."""


Supervise = Callable[[Callable[["RunSession"], None]], "RunSession"]
"""Runs a session to its end; is given what to call once when its first attempt runs."""


def refuse_to_detach() -> None:
    """Raise WtrainError if the platform cannot detach, or too few processes can be started."""
    refuse_few_tasks()
    if sys.platform == "win32":
        raise WtrainError(
            "--detach is not available on Windows",
            hint="start it in a window of its own: start wtrain run -- python train.py",
            reference="detach-unavailable",
        )


def in_background(supervise: Supervise) -> Report:
    """Run a session in a daemon that outlives this call; return its report of the first launch.

    WtrainError: the platform cannot detach. After REPORT_WITHIN_S the report says that nothing is
    launched yet.
    """
    refuse_to_detach()
    if sys.platform == "win32":
        raise AssertionError("refuse_to_detach() has refused")
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _become_daemon(supervise, write_fd)
    os.close(write_fd)
    os.waitpid(pid, 0)
    with open(read_fd, "rb"):
        return _wait_for_report(read_fd)


def _wait_for_report(read_fd: int) -> Report:
    data, part = b"", b"-"
    deadline = time.monotonic() + REPORT_WITHIN_S
    while part and time.monotonic() < deadline and len(data) < REPORT_CAP_BYTES:
        if select.select([read_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(read_fd, 4096)
            data += part
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError:
        if part:  # it waits for GPU memory, or for room on a disk
            words = f"wtrain: nothing is launched after {REPORT_WITHIN_S:g} s; wtrain ps shows why"
            return Report(code=0, words=words)
        words = "wtrain: the detached supervisor ended before it had launched anything"
        return Report(code=EXIT_OUR_BUG, words=words)


def _become_daemon(supervise: Supervise, write_fd: int) -> NoReturn:
    if sys.platform == "win32":
        raise AssertionError("refuse_to_detach() has refused")
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    reported = False

    def report(what: Report) -> None:
        nonlocal reported
        if not reported:
            reported = True
            with suppress(OSError):  # the waiting command has exited
                os.write(write_fd, msgspec.json.encode(what))
            os.close(write_fd)

    def launched(session: RunSession) -> None:
        run_id, path = session.directory.run_id, str(session.directory.path)
        lines = (run_id, path, f"wtrain status {run_id} | wtrain attach {run_id}")
        report(Report(code=0, words="\n".join(lines), run_dir=path))

    code = EXIT_OUR_BUG
    try:
        session = supervise(launched)
        code = session.exit_code
        report(Report(code=code, words=f"wtrain: {session.why}"))
        session.close_with_words()
    except WtrainError as error:
        code = error.exit_code
        report(Report(code=code, words=error.render()))
    except BaseException as error:  # noqa: BLE001 - the parent must hear of it
        report(Report(code=EXIT_OUR_BUG, words=f"wtrain: {type(error).__name__}: {error}"))
    finally:
        os._exit(code)
