"""Small files that one process writes and another reads: complete or missing, private by default.

Must not be given paths that a training wrote: the paths are wtrain's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from watchdog_train.trusted_files import open_read, open_regular, remove, rename

Kind = TypeVar("Kind")


def replace_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file, its mode less the umask; a reader sees the old, the new one or none.

    OSError: it cannot be written; the old content is still there.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        remove(fresh)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(open_regular(fresh, flags, mode=mode), "wb") as file:
            file.write(content)
        rename(fresh, path)
    except OSError:
        with suppress(OSError):
            remove(fresh)
        raise


def replace_json(path: Path, value: Any) -> None:
    """replace_whole() of a value as JSON."""
    replace_whole(path, as_json(value))


def as_json(value: Any) -> bytes:
    """With `?` for characters that are no UTF-8."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json  # milliseconds that others need not wait

        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def read_json(path: Path, kind: type[Kind], *, cap_bytes: int) -> Kind | None:
    """The value of a file; None if it is missing, unreadable, of another kind or too long."""
    try:
        with open_read(path) as file:
            return msgspec.json.decode(file.read(cap_bytes), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def take_json(path: Path, kind: type[Kind], *, cap_bytes: int) -> Kind:
    """Read an order that is carried out once: its file is deleted before the work begins.

    OSError: it is missing, or stays. msgspec.DecodeError: it holds something else.
    """
    with open_read(path) as file:
        data = file.read(cap_bytes)
    remove(path)
    return msgspec.json.decode(data, type=kind)


def answer_question(kind: type[Any], work: Callable[[Any], object]) -> None:
    """The main function of a helper process; its last argument is the file of the question."""
    with open_read(sys.argv[-1]) as file:
        question = msgspec.json.decode(file.read(), type=kind)
    replace_json(Path(question.out), work(question))
