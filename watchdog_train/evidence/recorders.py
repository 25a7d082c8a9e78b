"""Flight Recorder dumps of ranks: asked of torch's worker server, or left by NCCL in a file.

The client starts the server on a socket beside the slot. It answers from a thread of its own, with
the interpreter lock held by others, too. Nothing is unpickled: JSON is asked for, and NCCL's own
pickles are read as data.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.diagnosis.facts import CollectiveFact
from watchdog_train.core.diagnosis.recorder import (
    advanced,
    joined,
    looks_like_recorder,
    read_recorder,
    still_in,
)
from watchdog_train.core.model import Value
from watchdog_train.core.pickle_data import (
    DamagedPickleError,
    UnreadablePickleError,
    read,
)
from watchdog_train.trusted_files import names, read_regular

ANSWER_S = 2.0
_ANSWER_CAP_BYTES = 16 << 20
_FILE_CAP_BYTES = 16 << 20
_FILE_AGE_S = 900.0
"""A dump from an earlier start of the ranks inside the same attempt proves nothing now."""
_OPCODES_CAP = 3_000_000
_HANDLERS = {"cpu": "fr_trace_json", "nccl": "dump_nccl_trace_json"}
"""torch records collectives of the CPU and of NCCL apart, and each recorder has its own handler: of
an NCCL job the first is there and empty, a build without CUDA has no second one."""
_STATUS_ONLY = "?includecollectives=false"
_FILE = re.compile(rf"{layout.RECORDER_PREFIX}(?P<rank>\d{{1,6}})\Z")


class Recorded(Value):
    pid: int | None
    """None: it is of a file."""
    rank: int
    data: Any
    """As it came: untrusted."""


class Recorders:
    """Reads the ranks' records twice: a group that moves in between is not stuck."""

    def __init__(
        self, slot_dir: str | None, attempt_dir: str | None, ranks: dict[int, int]
    ) -> None:
        """`ranks`: rank by pid."""
        self._attempt_dir = attempt_dir
        self._sockets: dict[int, str] = {}
        for pid in ranks:
            path = os.path.join(slot_dir or "", f"{pid}{layout.SOCKET_SUFFIX}")
            if slot_dir is not None and os.path.exists(path):
                self._sockets[pid] = path
        self._ranks = ranks
        self._before: tuple[CollectiveFact, ...] = ()
        self.exchanging: tuple[int, ...] = ()
        """Ranks whose numbers grew between the two samples."""
        self.silent: tuple[int, ...] = ()
        """Pids whose server did not answer."""

    def first_look(self) -> None:
        self._before = _facts(self._ask(_STATUS_ONLY))

    def last_look(self) -> tuple[tuple[Recorded, ...], tuple[CollectiveFact, ...]]:
        """The dumps, and the collectives of groups that did not move."""
        asked = self._ask("")
        self.silent = tuple(sorted(self._sockets.keys() - {one.pid for one in asked}))
        known = {one.rank for one in asked}
        found = [one for one in left_in_files(self._attempt_dir) if one.rank not in known]
        facts = _facts(asked)
        self.exchanging = advanced(self._before, facts)
        return (*asked, *found), (*still_in(self._before, facts), *_facts(found))

    def _ask(self, query: str) -> list[Recorded]:
        if not self._sockets:
            return []
        with ThreadPoolExecutor(max_workers=min(16, len(self._sockets))) as pool:
            answers = pool.map(lambda path: fetch(path, query), self._sockets.values())
            found = zip(self._sockets, answers, strict=True)
            return [
                Recorded(pid=pid, rank=self._ranks[pid], data=data)
                for pid, data in found
                if data is not None
            ]


def _facts(dumps: Iterable[Recorded]) -> tuple[CollectiveFact, ...]:
    return tuple(fact for one in dumps for fact in read_recorder(one.data, one.rank))


def fetch(path: str, query: str = "") -> Any | None:
    """The recorders of the worker server on this socket; None without an answer in time.

    Returns:
        One dump; see `core.diagnosis.recorder.joined` if both recorders hold something.
    """
    until = time.monotonic() + ANSWER_S
    found: dict[str, Any] = {}
    for name, handler in _HANDLERS.items():
        body = _post(path, f"/handler/{handler}{query}", until)
        try:
            data = msgspec.json.decode(body) if body is not None else None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            continue
        if looks_like_recorder(data):
            found[name] = data
    return joined(found)


def _post(path: str, target: str, until: float) -> bytes | None:
    """The body of a good answer; a dead rank's socket refuses, a forked child's never answers."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(max(0.01, until - time.monotonic()))
            connection.connect(path)
            connection.sendall(f"POST {target} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            answer = bytearray()
            while len(answer) < _ANSWER_CAP_BYTES:
                connection.settimeout(max(0.01, until - time.monotonic()))
                part = connection.recv(1 << 16)
                if not part:
                    break
                answer += part
    except (OSError, ValueError):
        return None
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return body if b" 200 " in head.partition(b"\r\n")[0] else None


def left_in_files(attempt_dir: str | None) -> list[Recorded]:
    """Dumps that NCCL's watchdog left when a collective timed out."""
    found = []
    try:
        left = sorted(names(attempt_dir))[:4096] if attempt_dir else []
    except OSError:
        return []
    for name in left:
        match = _FILE.match(name)
        path = os.path.join(attempt_dir or "", name)
        if match is None or not _is_new(path):
            continue
        content = read_regular(path, _FILE_CAP_BYTES)
        data = read_dump(content[0]) if content is not None else None
        if data is not None:
            found.append(Recorded(pid=None, rank=int(match["rank"]), data=data))
    return found


def _is_new(path: str) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime < _FILE_AGE_S
    except OSError:
        return False


def read_dump(content: bytes) -> Any | None:
    """A Flight Recorder dump, JSON or pickled, as data; None for anything else. Never raises."""
    try:
        if content[:1] == b"\x80":
            data = read(content, _OPCODES_CAP)
        else:
            data = msgspec.json.decode(content)
    except (DamagedPickleError, UnreadablePickleError, msgspec.DecodeError, RecursionError):
        return None
    return data if looks_like_recorder(data) else None
