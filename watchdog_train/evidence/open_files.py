"""Who writes to whom through a pipe. Only reads /proc."""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_train.system import proc


def is_fed_by(pid: int, others: Iterable[int]) -> bool:
    """Whether one of these processes holds the writing end of the pipe that is its input.

    `python train.py | tee log`: tee waits for the training, not for a person.
    """
    pipe = proc.link(pid, "fd/0") or ""
    return pipe.startswith("pipe:") and any(
        file.name == pipe and file.writes
        for other in others
        for file in proc.open_files(other) or ()
    )
