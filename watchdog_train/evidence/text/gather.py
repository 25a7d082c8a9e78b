"""Texts that somebody brings -> the evidence that a diagnosis is made from. Touches no process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from watchdog_train.core.facts import CollectiveFact, Evidence, LogText, ProcessEvidence
from watchdog_train.core.model import ExitStatus
from watchdog_train.evidence.logs import clean_line
from watchdog_train.evidence.text import roles
from watchdog_train.evidence.text.assembly import Assembly
from watchdog_train.evidence.text.json_text import read_json
from watchdog_train.evidence.text.reader import Raised, Reading, read_text
from watchdog_train.evidence.text.sources import Source

LOG_LINES_CAP = 20_000
"""Of one file: the first and the last of them; what is between repeats itself."""
_WORLD = re.compile(
    r"(?:WORLD_SIZE|world[_ ]size|num_processes|Num processes|nranks|nproc[_-]per[_-]node)"
    r"['\"]?\s{0,3}[=: ]\s{0,3}(?P<size>\d{1,6})\b"
)
_EXIT = re.compile(
    r"\s*[\"']?(?:exit[ _-]?(?:code|status)?|returncode|return code)[\"']?\s*"
    r"[:=]\s*(?P<code>-?\d{1,3})\b",
    re.IGNORECASE,
)
_EXIT_SIGNAL = re.compile(r"\s*[\"']?signal[\"']?\s*[:=]\s*(?P<number>\d{1,2})\b", re.IGNORECASE)


def gather(sources: Sequence[Source]) -> Evidence:
    """What all these texts say together. Never raises for anything that is in them."""
    assembly = Assembly()
    logs: list[LogText] = []
    collectives: list[CollectiveFact] = []
    raised: list[Raised] = []
    end: ExitStatus | None = None
    for source in sources:
        who = roles.who_by_name(source.name)
        parsed = read_json(source.name, source.text, who)
        collectives += parsed.collectives
        for at, dump in enumerate(parsed.dumps):
            assembly.add_dump(dump, who, first=at == 0)
        if parsed.text is None:
            continue
        reading = read_text(parsed.text)
        assembly.add_reading(reading, who)
        raised += [_with_rank(item, who.rank) for item in reading.raised]
        end = end or _exit(reading)
        lines = _capped(reading.log)
        if lines:
            logs.append(LogText(source=source.name, lines=lines, rank=who.rank))
    assembly.add_interrupted(raised)
    processes = assembly.processes()
    return Evidence(
        why="crash" if _crashed(processes, raised, end) else "manual",
        processes=processes,
        logs=tuple(logs),
        exit=end,
        collectives=tuple(collectives),
        world_size=_world_size(logs),
    )


def _with_rank(item: Raised, rank: int | None) -> Raised:
    return item if item.rank is not None else msgspec.structs.replace(item, rank=rank)


def _capped(lines: Sequence[str]) -> tuple[str, ...]:
    if len(lines) > LOG_LINES_CAP:
        lines = [*lines[: LOG_LINES_CAP // 2], *lines[-LOG_LINES_CAP // 2 :]]
    return tuple(map(clean_line, lines))


def _crashed(
    processes: Iterable[ProcessEvidence], raised: Iterable[Raised], end: ExitStatus | None
) -> bool:
    """A crash is a failure of which nothing is left to look at."""
    if any(p.threads for p in processes):
        return False
    failed = end is not None and (bool(end.code) or end.signal is not None)
    return failed or any(not item.interrupted for item in raised)


def _exit(reading: Reading) -> ExitStatus | None:
    """A short note like `exit code: -9`; logs speak of the exits of many processes."""
    if len(reading.log) > 40:
        return None
    for line in reading.log:
        match = _EXIT.match(line)
        if match:
            code = int(match["code"])
            return ExitStatus(
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                how_known="somebody's note",
            )
        signal = _EXIT_SIGNAL.match(line)
        if signal:
            return ExitStatus(code=None, signal=int(signal["number"]), how_known="somebody's note")
    return None


def _world_size(logs: Iterable[LogText]) -> int | None:
    for log in logs:
        for line in log.lines:
            match = _WORLD.search(line)
            if match and int(match["size"]) > 0:
                return int(match["size"])
    return None
