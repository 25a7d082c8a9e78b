"""Copies one checkpoint file into the run directory, if it is what the save hook has noted.

`python -m watchdog_train.checkpoints.keep request.json` is a child process of the supervisor, at
low priority. By reflink where the file system can; never a hard link, which an overwriting in place
would change with the file itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.checkpoints.disk import Following, UnreadableError
from watchdog_train.checkpoints.disk import open_regular as open_checkpoint
from watchdog_train.checkpoints.pickle_head import counters, is_behind, step_of
from watchdog_train.core.model import KeepAnswer, KeptCopy, SaveRecord, Value
from watchdog_train.trusted_files import make_folder, open_regular, remove, rename
from watchdog_train.whole_files import answer_question

_CHUNK_BYTES = 4 * 1024 * 1024
_FREE_BYTES = 1024**3
"""So much stays free beside the copy: a full disk ends the training."""
_FICLONE = 0x40049409
"""ioctl of linux/fs.h: share the blocks of another file."""
_NICE = 10


class KeepRequest(Value):
    """What to copy, and where to."""

    save: SaveRecord
    """Without files where nobody writes any more: then the file counts as it is."""
    copy: str
    out: str = ""
    """Where the answer goes."""
    most_bytes: int
    earlier: KeptCopy | None = None
    """The copy of an earlier attempt, which a lower step must not replace."""


class NotKeptError(Exception):
    """The copy could not be made; the text says why."""


def keep(request: KeepRequest) -> KeepAnswer:
    """Make the copy, or say why there is none; an older copy stays until the new one is whole."""
    save = Following().now(request.save) or request.save
    answer = KeepAnswer(
        path=save.path,
        copy=request.copy,
        format=save.format,
        step=save.step,
        saved_at=save.saved_at,
    )
    begun = time.monotonic()
    temporary = f"{request.copy}.tmp"
    try:
        size_bytes, mtime_ns = next(iter(save.files.values()), None) or _present(save.path)
        _refuse_large(request, size_bytes)
        make_folder(Path(request.copy).parent)
        how = copy_file(save.path, temporary, (size_bytes, mtime_ns))
        counted = counters(temporary)
        _refuse_lower(request, counted)
        rename(Path(temporary), Path(request.copy))
    except (NotKeptError, UnreadableError, OSError) as error:
        with suppress(OSError):
            remove(temporary)
        why = getattr(error, "strerror", None) or str(error)
        return msgspec.structs.replace(answer, problem=why[:300])
    step = step_of(counted)
    return msgspec.structs.replace(
        answer,
        step=save.step if step is None else step,
        saved_at=mtime_ns / 1e9,
        how=how,
        seconds=round(time.monotonic() - begun, 3),
    )


def _present(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _refuse_large(request: KeepRequest, size_bytes: int) -> None:
    if size_bytes > request.most_bytes:
        raise NotKeptError("it is larger than recovery.keep_bytes")


def _refuse_lower(request: KeepRequest, counted: dict[str, int]) -> None:
    """What the files say decides; the steps as the hooks counted them where those say nothing."""
    earlier, step = request.earlier, request.save.step
    if earlier is None or not os.path.exists(request.copy):
        return
    kept = counters(request.copy)
    if kept.keys() & counted.keys():
        lower = is_behind(counted, kept)
    else:
        lower = step is not None and earlier.step is not None and step < earlier.step
    if lower:
        raise NotKeptError(f"the kept copy of attempt {earlier.attempt} is at a higher step")


def copy_file(path: str, target: str, noted: tuple[int, int]) -> Literal["reflink", "copy"]:
    """Copy a file that must stay as it was noted, durably, by reflink where that can be.

    Raises:
        NotKeptError, UnreadableError, OSError: it changed meanwhile, or there is no room.
    """
    if shutil.disk_usage(os.path.dirname(target)).free < noted[0] + _FREE_BYTES:
        raise NotKeptError("too little space is free for a copy")
    with open_checkpoint(path) as source:
        remove(target)
        descriptor = open_regular(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            _compare(path, noted)
            if _reflinked(source.fileno(), file.fileno()):
                how: Literal["reflink", "copy"] = "reflink"
            else:
                how = "copy"
                left = noted[0] + 1  # one more: a file that grows is seen by its size
                while left > 0 and (chunk := source.read(min(left, _CHUNK_BYTES))):
                    file.write(chunk)
                    left -= len(chunk)
            file.flush()
            os.fsync(file.fileno())
            written = os.fstat(file.fileno()).st_size
            os.utime(file.fileno() if os.utime in os.supports_fd else target, ns=(noted[1],) * 2)
    # The next save may have begun meanwhile.
    _compare(path, noted)
    if written != noted[0]:
        raise NotKeptError("it changed while it was copied")
    return how


def _compare(path: str, noted: tuple[int, int]) -> None:
    if _present(path) != noted:
        raise NotKeptError("it is no longer as the save hook noted it: the next save has begun")


def _reflinked(source: int, target: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # another file system, or one that cannot
        return False
    return True


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(_NICE)
    answer_question(KeepRequest, keep)
