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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.checkpoints.files import UnreadableError
from watchdog_train.checkpoints.files import open_regular as open_checkpoint
from watchdog_train.core.model import KeepAnswer, SaveRecord, Value
from watchdog_train.trusted_files import make_folder, open_read, open_regular, remove, rename
from watchdog_train.whole_files import replace_json

_REQUEST_CAP_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 4 * 1024 * 1024
_FREE_BYTES = 1024**3
"""So much stays free beside the copy: a full disk ends the training."""
_FICLONE = 0x40049409
"""ioctl of linux/fs.h: share the blocks of another file."""
_NICE = 10


class KeepRequest(Value, frozen=True, kw_only=True):
    """What to copy, and where to."""

    save: SaveRecord
    copy: str
    out: str
    """Where the answer goes."""


class NotKeptError(Exception):
    """The copy could not be made; the text says why."""


def keep(request: KeepRequest) -> KeepAnswer:
    """Make the copy, or say why there is none; an older copy stays until the new one is whole."""
    save = request.save
    ((size_bytes, mtime_ns),) = save.files.values()
    answer = KeepAnswer(
        path=save.path,
        copy=request.copy,
        format=save.format,
        step=save.step,
        saved_at=save.saved_at,
        size_bytes=size_bytes,
    )
    begun = time.monotonic()
    temporary = f"{request.copy}.tmp"
    try:
        make_folder(Path(request.copy).parent)
        how = _copy(save.path, temporary, (size_bytes, mtime_ns))
        rename(Path(temporary), Path(request.copy))
    except (NotKeptError, UnreadableError, OSError) as error:
        with suppress(OSError):
            remove(temporary)
        why = getattr(error, "strerror", None) or str(error)
        return msgspec.structs.replace(answer, problem=why[:300])
    seconds = round(time.monotonic() - begun, 3)
    return msgspec.structs.replace(answer, how=how, seconds=seconds)


def _copy(path: str, target: str, noted: tuple[int, int]) -> Literal["reflink", "copy"]:
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
    status = os.stat(path)
    if (status.st_size, status.st_mtime_ns) != noted:
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


def main(arguments: Sequence[str]) -> int:
    """Read the request, write the answer by an atomic replace."""
    if hasattr(os, "nice"):
        os.nice(_NICE)
    with open_read(arguments[0]) as file:
        request = msgspec.json.decode(file.read(_REQUEST_CAP_BYTES), type=KeepRequest)
    replace_json(Path(request.out), keep(request))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
