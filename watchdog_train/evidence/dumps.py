"""Text of py-spy and of the fault handler -> processes with their stacks. Pure, linear, total."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.stacks import (
    FRAMES_CAP,
    THREADS_CAP,
    Frame,
    ThreadStack,
    printable,
)
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
_Head = re.Match[str] | None
"""The line above the frames of a process or a thread; None: it was cut off."""
_Threads = list[tuple[_Head, list[Frame]]]


def dumps(text: str) -> tuple[ProcessEvidence, ...]:
    """The processes of all dumps in the text; pid 0 is not known. Never raises."""
    return tuple(
        _process(head, threads, rank)
        for (rank, _), lines in streams(text).items()
        for head, threads in _read(lines)
    )


def _read(lines: Sequence[Line]) -> list[tuple[_Head, _Threads]]:
    found: list[tuple[_Head, _Threads]] = []
    process: _Head = None
    inside = False
    for _, line in lines:
        head, frame = _THREAD.match(line), _frame(line)
        if head is not None or (frame is not None and not inside and 'File "' in line):
            if not inside:
                found.append((process, []))
                process, inside = None, True
            found[-1][1].append((head, []))
        if inside and frame is not None and head is None:
            frames = found[-1][1][-1][1]
            frames.append(frame)
            del frames[FRAMES_CAP // 2 : -FRAMES_CAP // 2]  # both ends of a recursion say enough
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


def _process(head: _Head, threads: _Threads, rank: int | None) -> ProcessEvidence:
    by_pyspy = any(one is not None and one["status"] for one, _ in threads)
    pid = int(head["pid"]) if head is not None else 0
    stacks = [_stack(one, frames) for one, frames in threads[:THREADS_CAP]]
    return ProcessEvidence(
        pid=pid,
        start=0,
        ppid=0,
        role="rank",
        rank=rank,
        command=tuple(printable(head["command"], 1000).split()) if head is not None else (),
        threads=with_main(stacks, pid, oldest_last=not by_pyspy),
        how="py-spy" if by_pyspy else "fault handler",
    )


def _stack(head: _Head, frames: Sequence[Frame]) -> ThreadStack:
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
    """The threads with the main one marked, by its name, its id, or its outermost frame.

    In another pid namespace neither name nor id identifies it.
    """
    signs = [_sign_of_main(one, pid) for one in threads]
    main = signs.index(min(signs)) if min(signs, default=3) < 3 else None
    if main is None and (oldest_last or (len(threads) == 1 and not is_idle_helper(threads[0]))):
        main = len(threads) - 1
    return tuple(replace(one, main=at == main) for at, one in enumerate(threads))


def _sign_of_main(thread: ThreadStack, pid: int | None) -> int:
    """0 for the surest sign; 3: it has none."""
    python = [frame.name for frame in thread.frames if not frame.native][-1:]
    bottom = thread.frames[-1].name if thread.frames else ""
    signs = (
        (thread.name or "").strip("\"'") == "MainThread",
        pid is not None and thread.os_id == pid,
        python == ["<module>"] or bottom in ("_start", "__libc_start_main", "main"),
    )
    return signs.index(True) if True in signs else len(signs)
