"""Puts a kept copy back to the path of a checkpoint file that was torn, for a script that only
opens that path.

`python -m watchdog_train.checkpoints.restore request.json` is a child process of the supervisor.
Nothing is deleted: the torn file is moved aside first, and the path is never without a file.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

from watchdog_train.checkpoints.disk import UnreadableError
from watchdog_train.checkpoints.keep import NotKeptError, copy_file
from watchdog_train.core.model import RestoreAnswer, Value
from watchdog_train.whole_files import answer_question


class RestoreRequest(Value):
    """Which file, from which copy."""

    path: str
    saved_at: float
    """Of the torn file, Unix seconds: one that was written since is left alone."""
    copy: str
    out: str = ""
    """Where the answer goes."""


def restore(request: RestoreRequest) -> RestoreAnswer:
    """Put the copy in the place of the torn file, or say why that stays where it is."""
    path = os.path.realpath(request.path)  # of a link the target was torn
    temporary = f"{path}.wtrain-restore"
    aside = None
    try:
        torn, kept = _as_found(path, request.saved_at), os.stat(request.copy)
        copy_file(request.copy, temporary, (kept.st_size, kept.st_mtime_ns))
        os.chmod(temporary, torn.st_mode & 0o777)
        os.utime(temporary, ns=(kept.st_mtime_ns, kept.st_mtime_ns))
        aside = _moved_aside(path)
        os.replace(temporary, path)
        _sync_directory(os.path.dirname(path))
    except (NotKeptError, UnreadableError, OSError) as error:
        with suppress(OSError):
            os.unlink(temporary)
        if aside is not None and not os.path.exists(path):
            with suppress(OSError):
                os.rename(aside, path)
        why = getattr(error, "strerror", None) or str(error)
        return RestoreAnswer(path=request.path, copy=request.copy, problem=why[:300])
    return RestoreAnswer(path=request.path, copy=request.copy, aside=aside)


def _as_found(path: str, saved_at: float) -> os.stat_result:
    status = os.stat(path)
    if status.st_mtime_ns / 1e9 != saved_at:
        raise NotKeptError("it was written since it was found torn")
    return status


def _moved_aside(path: str) -> str:
    """Give the torn file another name, which no save and no scan of checkpoints knows."""
    for number in itertools.count(1):
        aside = f"{path}.torn-{number}"
        try:
            os.link(path, aside)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            if os.path.exists(aside):
                continue
            os.rename(path, aside)
        return aside
    raise AssertionError


def _sync_directory(path: str) -> None:
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    answer_question(RestoreRequest, restore)
