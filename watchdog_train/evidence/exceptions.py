"""Exceptions of a training: by its own hooks, by torch elastic, by the end of its output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.diagnosis.facts import LogText, ProcessEvidence
from watchdog_train.core.model import ExceptionFact, Value
from watchdog_train.evidence.text.exceptions import exceptions, last_of
from watchdog_train.trusted_files import names, read_regular

_FILES_CAP = 256
_FILE_BYTES = 512 << 10


class Told(Value):
    """PID.exception.json, as the client writes it."""

    text: str
    start: int = 0
    attempt: int = 0
    rank: int | None = None
    thread: str = ""
    at: float = 0.0


def of_hooks(
    slot_dir: str | None,
    attempt: int,
    processes: Sequence[ProcessEvidence],
    progress_at: float | None = None,
) -> tuple[tuple[ProcessEvidence, ...], tuple[ExceptionFact, ...]]:
    """The processes with what each has raised, and what others of the attempt have, oldest first.

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
            fact = _fact(process.pid, told.pop(process.pid), process.rank)
        new = fact is not None and progress_at is not None and (fact.at or 0.0) > progress_at
        died = fact if new and fact is not None and fact.thread else None
        listed.append(msgspec.structs.replace(process, exception=fact, died=died))
    others = (_fact(pid, one, one.rank) for pid, one in told.items() if one.attempt == attempt)
    known = (fact for fact in others if fact is not None)
    return tuple(listed), tuple(sorted(known, key=lambda fact: fact.at or 0.0))


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
    fact = last_of(exceptions(told.text, "hook"))
    if fact is None:
        return None
    return msgspec.structs.replace(
        fact, pid=pid, rank=rank, thread=told.thread[:100], at=told.at or None
    )


def of_elastic(attempt_dir: str | None) -> ExceptionFact | None:
    """Of the rank that failed first, where its main function has torch elastic's `record`."""
    if attempt_dir is None:
        return None
    content = read_regular(Path(attempt_dir, layout.ELASTIC_ERROR), _FILE_BYTES)
    with suppress(msgspec.DecodeError, ValueError, RecursionError, KeyError, TypeError):
        if content is not None:
            said = msgspec.json.decode(content[0])["message"]["extraInfo"]["py_callstack"]
            return last_of(exceptions(str(said), "elastic"))
    return None


def of_output(logs: Iterable[LogText]) -> ExceptionFact | None:
    """The last traceback in the last lines of the output."""
    found = (last_of(exceptions("\n".join(log.lines), "output")) for log in logs)
    return last_of(fact for fact in found if fact is not None)
