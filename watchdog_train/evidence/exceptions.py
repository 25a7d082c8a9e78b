"""Exceptions of a training: by its own hooks, by torch elastic, by the end of its output."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.model import ExceptionFact, Value
from watchdog_train.evidence.logs import TAIL_BYTES, clean_lines
from watchdog_train.evidence.redact import redact_text
from watchdog_train.evidence.tracebacks import exceptions, is_wrapper, last_of
from watchdog_train.trusted_files import names, read_regular

_TIMES, _TRACEBACK = ".times", b"Traceback (most recent call last)"
"""As keeper.capped has them."""
_FRAME = b'  File "'
"""A SyntaxError of the script itself is printed without the line above."""
RECENT_S = 10.0
"""Before the last progress: batches that were ready are used up after their source has failed."""
_FILES_CAP = 256
_FILE_BYTES = 512 << 10


class Stays(Value):
    """Where the main thread handles the exception; line 0: in an exit handler."""

    line: int
    file: str = ""


class Told(Value):
    """PID.exception.json, as the client writes it."""

    text: str
    start: int = 0
    attempt: int = 0
    rank: int | None = None
    thread: str = ""
    at: float = 0.0
    quoted_at: int = 0
    """Index of a quoted traceback in the message; 0: none."""
    saving: str = ""
    stays: Stays | None = None
    """Set if the process did not exit after it."""


def of_hooks(
    slot_dir: str | None,
    attempt: int,
    processes: Sequence[ProcessEvidence],
    progress_at: float | None = None,
    tree: Callable[[str], ast.Module | None] = lambda _path: None,
) -> tuple[tuple[ProcessEvidence, ...], tuple[ExceptionFact, ...]]:
    """The processes with their exceptions, and those of others of the attempt, oldest first.

    A process that ended between two polls is in no list. `progress_at`: Unix seconds.
    """
    told = _told(slot_dir) if slot_dir is not None else {}
    listed = []
    for process in processes:
        found = told.get(process.pid)
        fact = None
        if found is not None and (
            0 in (found.start, process.start) or found.start == process.start
        ):
            told.pop(process.pid)
            if _counts(found.stays, process, tree):
                fact = _fact(process.pid, found, process.rank)
                lives = process.state not in ("Z", "X") and found.stays is not None
                fact = fact and msgspec.structs.replace(fact, stays=lives)
        new = fact is not None and progress_at is not None and (fact.at or 0.0) > progress_at
        died = fact if new and fact is not None and fact.thread else None
        listed.append(msgspec.structs.replace(process, exception=fact, died=died))
    others = (
        _fact(pid, one, one.rank)
        for pid, one in told.items()
        if one.attempt == attempt and (one.stays is None or not one.stays.line)
    )
    known = (fact for fact in others if fact is not None)
    return tuple(listed), tuple(sorted(known, key=lambda fact: fact.at or 0.0))


def _counts(
    stays: Stays | None, process: ProcessEvidence, tree: Callable[[str], ast.Module | None]
) -> bool:
    """Whether the exception has ended its script, or will after the cleanup block."""
    if stays is None or not stays.line:
        return True
    main = process.main
    here = main is not None and any(
        (frame.line, os.path.basename(frame.file)) == (stays.line, os.path.basename(stays.file))
        for frame in main.frames
    )
    module = tree(stays.file) if here else None
    return module is not None and _cleans_up(module, stays.line)


def _cleans_up(module: ast.Module, line: int) -> bool:
    """Whether the innermost block of that line runs on while an exception passes through it."""
    found, least = False, 1 << 30
    for node in ast.walk(module):
        blocks: list[tuple[Sequence[ast.AST], bool]] = []
        if isinstance(node, ast.Try):
            blocks = [(node.finalbody, True)]
            blocks += [(one.body, isinstance(one.body[-1], ast.Raise)) for one in node.handlers]
        elif isinstance(node, ast.With | ast.AsyncWith):
            blocks = [([node.items[0].context_expr], True)]
        for body, passes in blocks:
            first = getattr(body[0], "lineno", 0) if body else 0
            last = getattr(body[-1], "end_lineno", 0) if body else 0
            if first and first <= line <= last and last - first < least:
                found, least = passes, last - first
    return found


def _told(slot_dir: str) -> dict[int, Told]:
    found: dict[int, Told] = {}
    with suppress(OSError):
        for name in sorted(names(slot_dir)):
            pid = name.removesuffix(layout.EXCEPTION_SUFFIX)
            if pid == name or not pid.isdecimal() or len(found) >= _FILES_CAP:
                continue
            content = read_regular(os.path.join(slot_dir, name), _FILE_BYTES)
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                if content is not None:
                    found[int(pid)] = msgspec.json.decode(content[0], type=Told)
    return found


def _fact(pid: int, told: Told, rank: int | None) -> ExceptionFact | None:
    before = told.text[: told.quoted_at]
    fact = last_of(exceptions(before, "hook")) if before else None
    quoted = redact_text(told.text[told.quoted_at :]) if fact is not None else ""
    if fact is None or before.endswith("Original "):  # torch: of a DataLoader worker, the same
        fact, quoted = last_of(exceptions(told.text, "hook")), ""
    if fact is None:
        return None
    return msgspec.structs.replace(
        fact,
        pid=pid,
        rank=rank,
        thread=told.thread[:100],
        at=told.at or None,
        quoted=quoted,
        saving=redact_text(told.saving),
    )


def of_elastic(attempt_dir: str | None) -> ExceptionFact | None:
    """Of the rank that failed first, if its main function has torch elastic's `record`."""
    if attempt_dir is None:
        return None
    content = read_regular(Path(attempt_dir, layout.ELASTIC_ERROR), _FILE_BYTES)
    with suppress(msgspec.DecodeError, ValueError, RecursionError, KeyError, TypeError):
        if content is not None:
            said = msgspec.json.decode(content[0])["message"]["extraInfo"]["py_callstack"]
            return last_of(exceptions(str(said), "elastic"))
    return None


def of_output(paths: Iterable[str], progressed_at: float | None) -> tuple[ExceptionFact, ...]:
    """Exceptions printed after the last progress or shortly before it, oldest first.

    Without the time of that progress: the last of each file.
    """
    found: list[ExceptionFact] = []
    for path in paths:
        facts = [
            msgspec.structs.replace(fact, at=at)
            for at, text in _parts(path)
            if at is None or progressed_at is None or at >= progressed_at - RECENT_S
            for fact in exceptions(text, "output")
            if not is_wrapper(fact)
        ]
        found += facts if progressed_at is not None else facts[-1:]
    return tuple(sorted(found, key=lambda fact: fact.at or 0.0))


def _parts(path: str) -> list[tuple[float | None, str]]:
    """The end of a log in parts that were begun at known times, see keeper.capped."""
    read = read_regular(path, TAIL_BYTES, from_end=True)
    if read is None:
        return []
    content, size = read
    times = read_regular(path + _TIMES, TAIL_BYTES, from_end=True)
    marks: list[tuple[int, float | None]] = [(0, None)]
    for line in (times[0] if times is not None else b"").splitlines():
        with suppress(ValueError):
            at, offset = line.split()
            marks.append((max(0, int(offset) - (size - len(content))), float(at)))
    ends = [offset for offset, _ in marks[1:]] + [len(content)]
    return [
        (at, "\n".join(clean_lines(content[begin:end].decode("utf-8", "replace").splitlines())))
        for (begin, at), end in zip(marks, ends, strict=True)
        if _TRACEBACK in content[begin:end] or _FRAME in content[begin:end]
    ]
