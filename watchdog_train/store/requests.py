"""Requests that commands leave for a run's supervisor: one small file each, taken in order.

Must not trust a file: anything may have been put into the folder.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Literal

import msgspec

from watchdog_train.core.actions import Request
from watchdog_train.errors import WtrainError
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.trusted_files import make_folder, names, open_read, remove
from watchdog_train.whole_files import replace_whole

_FILE = re.compile(r"\d{1,20}-[a-z_]{1,16}\.json")
_MAX_BYTES = 65_536
_MAX_AT_ONCE = 100


def post(run: RunDirectory, kind: Literal["stop", "stop_now", "save", "dump"], by: str) -> None:
    """Leave a request, which the supervisor reads at its next turn.

    WtrainError: the run belongs to another user, or the folder cannot be written.
    """
    content = msgspec.json.encode(Request(kind=kind, by=by))
    name = f"{time.time_ns()}-{kind}.json"
    run.hold()
    try:
        make_folder(run.requests)
        replace_whole(run.requests / name, content)
    except OSError as error:
        raise WtrainError(
            f"the request cannot be left for the supervisor: {error.strerror}",
            context=str(run.requests),
            reference="request-unwritable",
        ) from error


def take(run: RunDirectory) -> list[Request]:
    """The requests that wait, oldest first; each is given out once.

    A file that holds no request, or is another user's, is removed too: it would be read every turn.
    """
    taken: list[Request] = []
    for name in _waiting(run)[:_MAX_AT_ONCE]:
        path = run.requests / name
        content = b""
        with contextlib.suppress(OSError), open_read(path) as file:
            content = file.read(_MAX_BYTES + 1)
        try:
            remove(path)
        except OSError:
            continue  # not removed is not taken: obeying it again at every look would be worse
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            taken.append(msgspec.json.decode(content, type=Request))
    return taken


def _waiting(run: RunDirectory) -> list[str]:
    try:
        found = [name for name in names(run.requests) if _FILE.fullmatch(name)]
    except OSError:
        return []
    return sorted(found, key=lambda name: (int(name.partition("-")[0]), name))
