"""Whether a save failed for want of room, whatever the library that wrote it says."""

from __future__ import annotations

import os
import re
import sys

from watchdog_train.core.model import ExceptionFact, FullDisk, SaveRecord

_SAYS_FULL = re.compile(
    r"No space left|\bENOSPC\b|StorageFull|os error 28\b|Errno 28\b|errno = 28\b|disk is full"
)
_SAYS_QUOTA = re.compile(r"Disk quota exceeded|\bEDQUOT\b|os error 122\b|Errno 122\b|errno = 122\b")
_WRITES = re.compile(r"save|checkpoint|dump|write|serializ|ckpt|tofile|flush", re.IGNORECASE)
_OF_THE_CODE = re.compile(
    r"(?:Type|Key|Index|Attribute|Name|Assertion|Import|ModuleNotFound|Lookup|Syntax|UnboundLocal|"
    r"ZeroDivision|NotImplemented|Recursion|Unicode\w*|OutOfMemory|Memory|Pickling|Unpickling)Error\b|"
    r"\bCUDA\b|NCCL|KeyboardInterrupt",
)
_LEAST_BYTES = 64 << 10
"""Less than this is full for any checkpoint, also without an earlier one to compare."""


def full_disk(fact: ExceptionFact, last: SaveRecord | None, folder: str) -> FullDisk | None:
    """The missing space of the file system; None if the exception has another reason.

    Args:
        fact: what the process raised.
        last: the save before, which has succeeded.
        folder: the likely target if it is not in the message.
    """
    said = " ".join((fact.type, fact.message, *(one.message for one in fact.chain)))
    quota, full = _SAYS_QUOTA.search(said), _SAYS_FULL.search(said)
    calls = (f"{one.function} {one.source}" for one in fact.frames)
    if not (quota or full):
        writes = bool(fact.saving) or any(map(_WRITES.search, calls))
        if not writes or _OF_THE_CODE.search(said):
            return None
    need = sum(size for size, _ in last.files.values()) if last is not None else 0
    named = re.search(r"\[Errno \d+\] [^:]{1,100}: '(?P<path>[^'\n]{1,400})'", fact.message)
    places = [fact.saving, named["path"] if named else "", last.path if last else "", folder]
    places = [place for place in places if place]
    for place in places:
        found = _lacking(place, need or None)
        if found is not None:
            return found
    if (quota or full) and places:
        return FullDisk(path=places[0], lacks="quota" if quota else "bytes")
    return None


def _lacking(path: str, need: int | None) -> FullDisk | None:
    if sys.platform == "win32":
        return None
    folder = os.path.dirname(path) if not os.path.isdir(path) else path
    try:
        status = os.statvfs(folder)
        written = os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        return None
    free = status.f_bavail * status.f_frsize
    if status.f_files and not status.f_favail:
        return FullDisk(path=path, lacks="inodes")
    # The bytes of a half-written file count as free: they were room for this save.
    if status.f_blocks and free < _LEAST_BYTES:
        return FullDisk(path=path, lacks="bytes", free_bytes=free)
    if status.f_blocks and free + written < (need or 0):
        return FullDisk(path=path, lacks="bytes", free_bytes=free, need_bytes=need)
    return None
