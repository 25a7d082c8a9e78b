"""Copies of checkpoint files that are overwritten in place: made after a save, put back when torn.

`python -m watchdog_train.checkpoints.copies request.json` is a child process of the supervisor. It
deletes no file of a training: a torn one is moved aside, and its path is never without a file.
"""

import itertools
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from watchdog_train.checkpoints import disk
from watchdog_train.checkpoints.pickle_head import counters, is_behind, step_of
from watchdog_train.core.model import KeepAnswer, KeptCopy, RestoreAnswer, SaveRecord, Value
from watchdog_train.trusted_files import make_folder, open_regular, remove, rename
from watchdog_train.whole_files import answer_question

_CHUNK_BYTES = 4 * 1024 * 1024
_FREE_BYTES = 1024**3
"""Space kept free beside the copy: a full disk kills the training."""
_FICLONE = 0x40049409
"""ioctl of linux/fs.h: share the blocks of another file."""
_NICE = 10


class KeepRequest(Value, tag=True):
    save: SaveRecord
    """Without files if all writers have exited: then the file counts as it is."""
    copy: str
    out: str = ""
    most_bytes: int
    earlier: KeptCopy | None = None
    """The copy of an earlier attempt, which a lower step must not replace."""


class RestoreRequest(Value, tag=True):
    """The file to put back, and its copy, for a script that only opens the file's own path."""

    path: str
    saved_at: float
    """Of the torn file, Unix seconds: a file that was written since is left alone."""
    copy: str
    out: str = ""


class NotCopiedError(Exception):
    """There is no copy; the text has the reason."""


_FAILURES = (NotCopiedError, disk.UnreadableError, OSError)


def keep(request: KeepRequest) -> KeepAnswer:
    """Make the copy, or return the reason; an older copy stays until the new one is complete."""
    save = disk.Following().now(request.save) or request.save
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
        noted = next(iter(save.files.values()), None) or _present(save.path)
        if noted[0] > request.most_bytes:
            raise NotCopiedError("it is larger than recovery.keep_bytes")
        make_folder(Path(request.copy).parent)
        how = _copy_file(save.path, temporary, noted)
        counted = counters(temporary)
        _refuse_lower(request, counted)
        rename(Path(temporary), Path(request.copy))
    except _FAILURES as error:
        with suppress(OSError):
            remove(temporary)
        return msgspec.structs.replace(answer, problem=_why(error))
    step = step_of(counted)
    return msgspec.structs.replace(
        answer,
        step=save.step if step is None else step,
        saved_at=noted[1] / 1e9,
        how=how,
        seconds=round(time.monotonic() - begun, 3),
    )


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)[:300]


def _present(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _refuse_lower(request: KeepRequest, counted: dict[str, int]) -> None:
    """The files' own counts decide; without them the steps as the hooks counted them."""
    earlier, step = request.earlier, request.save.step
    if earlier is None or not os.path.exists(request.copy):
        return
    kept = counters(request.copy)
    if kept.keys() & counted.keys():
        lower = is_behind(counted, kept)
    else:
        lower = step is not None and earlier.step is not None and step < earlier.step
    if lower:
        raise NotCopiedError(f"the kept copy of attempt {earlier.attempt} is at a higher step")


def _copy_file(path: str, target: str, noted: tuple[int, int]) -> Literal["reflink", "copy"]:
    """Copy a file that must stay as it was noted, durably, by reflink if possible.

    Never a hard link, which an overwriting in place would change with the file itself.
    """
    if shutil.disk_usage(os.path.dirname(target)).free < noted[0] + _FREE_BYTES:
        raise NotCopiedError("too little space is free for a copy")
    with disk.open_regular(path) as source:
        remove(target)
        descriptor = open_regular(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            _compare(path, noted)
            how: Literal["reflink", "copy"] = "reflink"
            if not _reflinked(source.fileno(), file.fileno()):
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
        raise NotCopiedError("it changed while it was copied")
    return how


def _compare(path: str, noted: tuple[int, int]) -> None:
    if _present(path) != noted:
        raise NotCopiedError("it is no longer as the save hook noted it: the next save has begun")


def _reflinked(source: int, target: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # another file system, or one that cannot
        return False
    return True


def restore(request: RestoreRequest) -> RestoreAnswer:
    """Put the copy in the place of the torn file, or return the reason why not."""
    path = os.path.realpath(request.path)  # of a link the target was torn
    temporary = f"{path}.wtrain-restore"
    aside = problem = None
    try:
        torn, kept = os.stat(path), os.stat(request.copy)
        if torn.st_mtime_ns / 1e9 != request.saved_at:
            raise NotCopiedError("it was written since it was found torn")
        _copy_file(request.copy, temporary, (kept.st_size, kept.st_mtime_ns))
        os.chmod(temporary, torn.st_mode & 0o777)
        aside = _moved_aside(path)
        os.replace(temporary, path)
        _sync_directory(os.path.dirname(path))
    except _FAILURES as error:
        with suppress(OSError):
            os.unlink(temporary)
        if aside is not None and not os.path.exists(path):
            with suppress(OSError):
                os.rename(aside, path)
        aside, problem = None, _why(error)
    return RestoreAnswer(path=request.path, copy=request.copy, aside=aside, problem=problem)


def _moved_aside(path: str) -> str:
    """Give the torn file a name that no save uses and no scan takes for a checkpoint."""
    names = (f"{path}.torn-{number}" for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    try:
        os.link(path, aside)
    except FileExistsError:
        return _moved_aside(path)
    except OSError:  # a file system without links
        os.rename(path, aside)
    return aside


def _sync_directory(path: str) -> None:
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _answer(request: KeepRequest | RestoreRequest) -> KeepAnswer | RestoreAnswer:
    if isinstance(request, RestoreRequest):
        return restore(request)
    if hasattr(os, "nice"):
        os.nice(_NICE)
    return keep(request)


if __name__ == "__main__":
    requests: Any = KeepRequest | RestoreRequest
    answer_question(requests, _answer)
