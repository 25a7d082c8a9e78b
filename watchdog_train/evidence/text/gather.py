"""Texts that somebody brings -> the evidence that a diagnosis is made from. Touches no process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from watchdog_train.core.diagnosis.facts import CollectiveFact, Evidence, LogText, ProcessEvidence
from watchdog_train.core.diagnosis.log_lines import LINE_CAP, advances, progress_of, read_line
from watchdog_train.core.diagnosis.log_search import MOVED_ON
from watchdog_train.core.diagnosis.recorder import looks_like_recorder, read_recorder
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import Value
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.logs import clean_lines
from watchdog_train.evidence.text import roles
from watchdog_train.evidence.text.assembly import Assembly
from watchdog_train.evidence.text.exceptions import as_facts
from watchdog_train.evidence.text.reader import Dump, Raised, read_text
from watchdog_train.evidence.text.roles import Who
from watchdog_train.evidence.text.sources import Source

LOG_CHARS = 2 << 20
"""Of all logs together: every rule searches them."""
LOG_CHARS_LEAST = 32 << 10
"""Of each log, however many there are."""
SAME_LINES = 30
"""Lines that differ in numbers alone: so many of the first and of the last are kept."""
_SHAPE_CHARS = 120
_NOT_LETTERS = re.compile(r"[^A-Za-z]+")
_WORLD = re.compile(
    r"(?:WORLD_SIZE|world[_ ]size|num_processes|Num processes|nranks|nproc[_-]per[_-]node)"
    r"['\"]?\s{0,3}[=: ]\s{0,3}(?P<size>\d{1,6})\b"
)
_FAILED_TASK = re.compile(
    r"srun: error: \S{1,80}: tasks? [\d,-]{1,80}: Exited with exit code [1-9]"
)


def gather(sources: Sequence[Source]) -> Evidence:
    """What all these texts say together. Never raises for anything that is in them."""
    assembly = Assembly()
    logs: list[LogText] = []
    collectives: list[CollectiveFact] = []
    raised: list[Raised] = []
    share = max(LOG_CHARS_LEAST, LOG_CHARS // max(1, len(sources)))
    for source in sources:
        who = roles.who_by_name(source.name)
        parsed = read_json(source.name, source.text, who)
        collectives += parsed.collectives
        for at, dump in enumerate(parsed.dumps):
            assembly.add_dump(dump, who, first=at == 0)
        if parsed.text is None:
            continue
        reading = read_text(parsed.text)
        for at, dump in enumerate(reading.dumps):
            assembly.add_dump(dump, who, first=at == 0)
        caught = _worked_on(reading.log) if reading.raised else 0
        raised += [_with_rank(item, who.rank) for item in reading.raised if item.at_line >= caught]
        lines = thinned(reading.log, share)
        if lines:
            logs.append(LogText(source=source.name, lines=lines, rank=who.rank))
    assembly.add_interrupted(raised)
    told = [line for log in logs for line in log.lines]
    processes = assembly.processes()
    return Evidence(
        why="crash" if _crashed(processes, raised, told) else "manual",
        processes=processes,
        logs=tuple(logs),
        collectives=tuple(collectives),
        world_size=_world_size(logs),
        exceptions=as_facts(raised, "output"),
    )


def _with_rank(item: Raised, rank: int | None) -> Raised:
    return item if item.rank is not None else msgspec.structs.replace(item, rank=rank)


def _worked_on(log: Sequence[str]) -> int:
    """The line before which each exception was caught, for work goes on to the end; 0: none."""
    lines = [read_line(line) for line in log]
    if not lines or progress_of(lines[-1].text) is None:
        return 0
    return next((at for at, _ in advances(lines)[-MOVED_ON:]), 0)


def thinned(lines: Sequence[str], chars: int) -> tuple[str, ...]:
    """Of lines that differ in numbers alone the first and the last ones, within `chars`.

    A log of a night is the same line of progress ten thousand times; to search all of them with
    every rule would take minutes.
    """
    shapes = [_NOT_LETTERS.sub("", line[:_SHAPE_CHARS]) for line in lines]
    total, seen = Counter(shapes), Counter[str]()
    kept: list[str] = []
    for line, shape in zip(lines, shapes, strict=True):
        seen[shape] += 1
        if seen[shape] <= SAME_LINES or seen[shape] > total[shape] - SAME_LINES:
            kept.append(line[:LINE_CAP])
    return clean_lines(_ends(kept, chars))


def _ends(lines: list[str], chars: int) -> list[str]:
    """The first and last lines that fit into so many characters: half at each end."""
    if sum(map(len, lines)) <= chars:
        return lines
    head: list[str] = []
    tail: list[str] = []
    for found, source in ((head, iter(lines)), (tail, reversed(lines))):
        left = chars // 2
        for line in source:
            left -= len(line)
            if left < 0:
                break
            found.append(line)
    return [*head, *reversed(tail)]


def _crashed(
    processes: Iterable[ProcessEvidence],
    raised: Iterable[Raised],
    told: Iterable[str],
) -> bool:
    """A crash is a failure of which nothing is left to look at."""
    if any(p.threads for p in processes):
        return False
    return any(map(_FAILED_TASK.match, told)) or any(
        not item.interrupted and item.owner != "ignored" for item in raised
    )


def _world_size(logs: Iterable[LogText]) -> int | None:
    for log in logs:
        for line in log.lines:
            match = _WORLD.search(line)
            if match and int(match["size"]) > 0:
                return int(match["size"])
    return None


class JsonText(Value):
    """What a file is, JSON or not."""

    dumps: tuple[Dump, ...] = ()
    collectives: tuple[CollectiveFact, ...] = ()
    text: str | None = None
    """To be read as text; None: nothing is left to read."""


def read_json(name: str, text: str, who: Who) -> JsonText:
    """Takes JSON apart; anything else comes back as it is. Never raises."""
    stripped = text.lstrip("\ufeff \t\r\n")
    if not name.lower().endswith(".json") and stripped[:1] not in ("[", "{"):
        return JsonText(text=text)
    try:
        data = msgspec.json.decode(stripped)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return JsonText(text=text)
    if isinstance(data, list):
        dumps = _dumps(stripped, data, who)
        if dumps:
            return JsonText(dumps=dumps)
    if looks_like_recorder(data):
        return JsonText(collectives=read_recorder(data, who.rank))
    return JsonText(text=text)


def _dumps(text: str, data: list[Any], who: Who) -> tuple[Dump, ...]:
    if not data or not all(isinstance(entry, dict) and "frames" in entry for entry in data):
        return ()
    try:
        threads = msgspec.json.decode(text, type=tuple[ThreadStack, ...])
        return (Dump(tool="wtrain", threads=threads, pid=who.pid),)
    except msgspec.DecodeError:
        pass
    pids = {entry.get("pid") for entry in data if isinstance(entry.get("pid"), int)}
    found = []
    for pid in sorted(pids) or [who.pid]:
        threads_of = pyspy.threads_of(data, pid)
        if threads_of is not None:
            found.append(Dump(tool="py-spy", threads=threads_of, pid=pid))
    return tuple(found)
