"""Text of py-spy and of the fault handler -> stacks. Pure, linear, total."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.stacks import (
    FRAMES_CAP,
    THREADS_CAP,
    Frame,
    ThreadStack,
    printable,
)
from watchdog_train.core.model import Value
from watchdog_train.evidence.tracebacks import FRAME, Line, streams

_PROCESS = re.compile(r"\s*Process (?P<pid>\d{1,10}): ?(?P<command>.{0,1000})")
_THREAD = re.compile(
    r"\s*(?:Current thread|Thread) ?(?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,12})?(?:/0x[0-9A-Fa-f]{1,16})?"
    r"(?: \[(?P<short>[^\]\n]{0,100})\])?(?: \([A-Z][^)]{0,60}\))? ?(?:"
    r"\((?P<status>active|idle)(?P<gil>\+gil)?(?:\+gc)?\)(?:: ?\"?(?P<name>[^\"\n]{0,200})\"?)?|"
    r"\(most recent call first\))"
)
_PYSPY_FRAME = re.compile(
    r"\s{1,6}(?P<name>\S[^\n]*?) \((?P<file>[^()\n]{1,1000}?)(?::(?P<line>\d{1,7}))?\)\s*\Z"
)
_CPP_ARGUMENTS = re.compile(r"\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?\Z")
_NATIVE_FILE = re.compile(r"\.(?:so|dylib|dll)\b|\.(?:c|cc|cpp|cxx|cu|h|hpp|rs|pyx|S)\Z")


class Dump(Value):
    """The stacks of one process at one moment."""

    how: Literal["py-spy", "fault handler"]
    threads: tuple[ThreadStack, ...]
    line: int
    """Of the text where it begins, from 0."""
    current: int = 0
    """Position of the thread that ran when the fault handler was called."""
    rank: int | None = None
    pid: int | None = None
    command: str = ""


class _Process(msgspec.Struct):
    line: int
    head: re.Match[str] | None
    heads: list[re.Match[str] | None]
    frames: list[list[Frame]]
    """Of each thread, as the heads."""


def dumps(text: str) -> tuple[Dump, ...]:
    """All that the text holds, in its order. Never raises."""
    found = [_dump(one, rank) for (rank, _), lines in streams(text).items() for one in _read(lines)]
    return tuple(sorted(found, key=lambda one: one.line))


def _read(lines: Sequence[Line]) -> list[_Process]:
    """Of the lines of one printer."""
    found: list[_Process] = []
    process: re.Match[str] | None = None
    inside = False
    for number, line in lines:
        head, frame = _THREAD.match(line), _frame(line)
        # The line above the frames of the fault handler may be cut off.
        if head is not None or (frame is not None and not inside and 'File "' in line):
            if not inside:
                found.append(_Process(number, process, [], []))
                process, inside = None, True
            found[-1].heads.append(head)
            found[-1].frames.append([])
        if inside and frame is not None and head is None:
            found[-1].frames[-1].append(frame)
            del found[-1].frames[-1][FRAMES_CAP // 2 : -FRAMES_CAP // 2]  # ends tell the story
        elif head is None and line[:1] not in ("", " ", "\t"):
            inside = False
            process = _PROCESS.match(line) or (process if "Python v" in line else None)
    return found


def _frame(line: str) -> Frame | None:
    match = FRAME.match(line)
    if match is not None and (match["comma"] or not match["name"]):
        return None  # of a traceback
    match = match or _PYSPY_FRAME.match(line)
    if match is None:
        return None
    file, name = match["file"].strip(), match["name"].strip()
    native = _NATIVE_FILE.search(file) is not None
    return Frame(
        function=printable(_CPP_ARGUMENTS.sub("", name) if native else name),
        file=printable(file),
        line=int(match["line"] or 0),
        native=native,
    )


def _dump(process: _Process, rank: int | None) -> Dump:
    heads = process.heads[:THREADS_CAP]
    by_pyspy = any(head is not None and head["status"] for head in heads)
    pid = int(process.head["pid"]) if process.head is not None else None
    current = (at for at, head in enumerate(heads) if head is not None and "Current" in head[0])
    threads = tuple(map(_stack, heads, process.frames))
    return Dump(
        how="py-spy" if by_pyspy else "fault handler",
        threads=with_main(threads, pid, oldest_last=not by_pyspy),
        line=process.line,
        current=next(current, 0),
        rank=rank,
        pid=pid,
        command=printable(process.head["command"], 1000) if process.head is not None else "",
    )


def _stack(head: re.Match[str] | None, frames: Sequence[Frame]) -> ThreadStack:
    if head is None:
        return ThreadStack(frames=tuple(frames))
    by_pyspy, name = bool(head["status"]), head["name"] or head["short"]
    return ThreadStack(
        frames=tuple(frames),
        name=printable(name) if name else None,
        os_id=int(head["id"], 0) if by_pyspy and head["id"] else None,
        active=head["status"] == "active" if by_pyspy else None,
        owns_gil=bool(head["gil"]),
    )


def with_main(
    threads: Sequence[ThreadStack], pid: int | None, *, oldest_last: bool = False
) -> tuple[ThreadStack, ...]:
    """The threads with the main one marked, by its name, its id, or what is at its bottom.

    In another pid namespace neither name nor id tell it.
    """
    main = _main_position(threads, pid)
    if main is None and oldest_last and threads:
        main = len(threads) - 1
    return tuple(msgspec.structs.replace(one, main=at == main) for at, one in enumerate(threads))


def _main_position(threads: Sequence[ThreadStack], pid: int | None) -> int | None:
    for at, one in enumerate(threads):
        if one.main or (one.name or "").strip("\"'") == "MainThread":
            return at
    for at, one in enumerate(threads):
        if pid is not None and one.os_id == pid:
            return at
    for at, one in enumerate(threads):
        python = [frame.name for frame in one.frames if not frame.native][-1:]
        bottom = one.frames[-1].name if one.frames else ""
        if python == ["<module>"] or bottom in ("_start", "__libc_start_main", "main"):
            return at
    return 0 if len(threads) == 1 and not is_idle_helper(threads[0]) else None
