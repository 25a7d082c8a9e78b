"""Tracebacks -> exceptions: chains joined, what workers and launchers wrap taken off. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from watchdog_train.core.diagnosis.stacks import Frame, is_own_file
from watchdog_train.core.model import CodePlace, ExceptionCause, ExceptionFact
from watchdog_train.evidence.logs import clean_line
from watchdog_train.evidence.redact import redact_text
from watchdog_train.evidence.text.reader import Raised, read_text

Source = Literal["hook", "elastic", "output"]
_FRAMES_KEPT = 20
_CHAIN_CAP = 8
_WRAPPERS = re.compile(
    r"(?:.*\.)?(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|"
    r"(?:Base)?ExceptionGroup|_?RemoteTraceback|CalledProcessError|RayTaskError(?:\(\w+\))?)\Z"
)
"""What a launcher or a parent raises because a child of its has failed."""
_EXCEPTION = re.compile(r"(?:\w+\.)*(?:[A-Z]\w*|\w*(?:error|timeout|Error))\Z")
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (?P<worker>\d{1,6})")
_MAIN = ("", "MainThread", "MainProcess", "ignored")


def exceptions(text: str, source: Source) -> tuple[ExceptionFact, ...]:
    """All that were not caught, in the order of the text."""
    return as_facts(read_text(text).raised, source)


def as_facts(raised: Iterable[Raised], source: Source) -> tuple[ExceptionFact, ...]:
    """The same of tracebacks that were read before."""
    found: list[ExceptionFact] = []
    open_at: dict[int | None, int] = {}
    for item in raised:
        if not _EXCEPTION.match(item.type) or item.owner == "ignored":
            continue
        fact = _fact(item, source)
        at = open_at.get(item.rank)
        if item.follows is None or at is None:
            open_at[item.rank] = len(found)
            found.append(fact)
        elif item.follows != "sibling":
            found[at] = _joined(found[at], fact, item)
    return tuple(found)


def is_wrapper(fact: ExceptionFact) -> bool:
    """Whether it only says that a child process has failed."""
    return _WRAPPERS.match(fact.type) is not None


def last_of(found: Iterable[ExceptionFact]) -> ExceptionFact | None:
    """The last one that is no wrapper."""
    return next((fact for fact in reversed(tuple(found)) if not is_wrapper(fact)), None)


def _fact(item: Raised, source: Source) -> ExceptionFact:
    places = tuple(map(_place, reversed(item.frames)))
    if places and places[0].file != "<string>":  # no script of python -c: made by exec
        places = tuple(
            msgspec.structs.replace(one, own=False) if one.file == "<string>" else one
            for one in places
        )
    owner = item.owner or ""
    return ExceptionFact(
        type=item.type,
        message=clean_line(item.message),
        raised=places[-1] if places else None,
        own=next((place for place in reversed(places) if place.own), None),
        frames=(*places[:1], *places[1:][1 - _FRAMES_KEPT :]),
        source=source,
        rank=item.rank,
        thread="" if owner in _MAIN else owner,
    )


def _place(frame: Frame) -> CodePlace:
    return CodePlace(
        file=frame.file,
        line=frame.line,
        function=frame.name,
        own=not frame.native and is_own_file(frame.file),
        source=redact_text(frame.source or ""),
    )


def _joined(before: ExceptionFact, fact: ExceptionFact, item: Raised) -> ExceptionFact:
    """Two links of a chain as one fact."""
    if item.follows == "original":
        in_worker = _IN_WORKER.match(before.message)
        worker = int(in_worker["worker"]) if in_worker else None
        return msgspec.structs.replace(fact, chain=before.chain, worker=worker)
    if is_wrapper(fact) or (before.type, before.message) == (fact.type, fact.message):
        return before  # carried over from another process
    cause = ExceptionCause(type=before.type, message=before.message)
    return msgspec.structs.replace(fact, chain=(*before.chain, cause)[-_CHAIN_CAP:])
