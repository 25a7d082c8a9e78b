"""Runs many short tools at once, each with a deadline, in one thread; keeps their capped output.

Never waits on anything but the children it started itself, by pid.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

from watchdog_train.core.model import Value
from watchdog_train.system.protocol import OUR_TOOL

_POLL_S = 0.004
_REAP_S = 0.5
"""Seconds. A killed tool that still exists after this hangs in the kernel; it is left."""


class Job(Value):
    pid: int
    argv: tuple[str, ...]
    timeout_s: float


class Finished(Value):
    job: Job
    code: int | None
    """None: it was killed at its deadline, or never started."""
    stdout: str
    stderr: str
    problem: str | None
    """Why there is no exit code."""


class _Running(NamedTuple):
    """A tool that runs, with its output files (a pipe that is not read would block it)."""

    job: Job
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    started: float


def run_all(
    jobs: Sequence[Job],
    *,
    parallel: int,
    until: float,
    output_cap_bytes: int,
    directory: str,
    after: Callable[[int], None],
    still_safe: Callable[[int], str | None],
    meanwhile: Callable[[], None],
) -> Iterator[Finished]:
    """Run the jobs in order, `parallel` at a time, and none beyond `until` (monotonic).

    Each result is yielded when its tool has ended. `after(pid)` is called when a tool has left a
    process, however it ended. `still_safe(pid)` is called right before a tool starts, and returns
    the reason if it must not. `meanwhile` is called while tools run. Closing the iterator kills
    running tools.
    """
    waiting = deque(jobs)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < parallel and time.monotonic() < until:
                job = waiting.popleft()
                why_not = still_safe(job.pid)
                started = _unfinished(job, why_not) if why_not else _start(job, directory)
                if isinstance(started, Finished):
                    yield started
                else:
                    running.append(started)
            now = time.monotonic()
            if now >= until:
                late = "not reached within the time for the whole collection"
                while waiting:
                    yield _unfinished(waiting.popleft(), late)
            for item in tuple(running):
                code = item.process.poll()
                if code is None and now < min(item.started + item.job.timeout_s, until):
                    continue
                running.remove(item)
                finished = _finish(item, code, output_cap_bytes)
                after(item.job.pid)
                yield finished
            if running:
                meanwhile()
                time.sleep(_POLL_S)
    finally:
        for item in running:
            _finish(item, None, 0)
            after(item.job.pid)


def _start(job: Job, directory: str) -> _Running | Finished:
    with contextlib.ExitStack() as stack:
        try:
            # In the collector's process group: a kill of the group kills the tool, too.
            out = stack.enter_context(tempfile.TemporaryFile(dir=directory))
            err = stack.enter_context(tempfile.TemporaryFile(dir=directory))
            process = subprocess.Popen(
                job.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "RUST_BACKTRACE": "0", OUR_TOOL: "1"},
            )
        except OSError as error:
            return _unfinished(job, f"could not be started: {error}")
        stack.pop_all()
    return _Running(job, process, out, err, time.monotonic())


def _finish(item: _Running, code: int | None, cap_bytes: int) -> Finished:
    problem = None
    if code is None:
        item.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            item.process.wait(_REAP_S)
        waited = time.monotonic() - item.started
        problem = f"gave no answer within {waited:.1f} s and was killed"
    texts = []
    for file in (item.out, item.err):
        with file:
            file.seek(0)
            texts.append(file.read(cap_bytes).decode("utf-8", "replace"))
    return Finished(job=item.job, code=code, stdout=texts[0], stderr=texts[1], problem=problem)


def _unfinished(job: Job, problem: str) -> Finished:
    return Finished(job=job, code=None, stdout="", stderr="", problem=problem)
