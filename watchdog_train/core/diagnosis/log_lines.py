"""One line of output: its printer, its time, and the rest. Pure.

Launchers put the rank in front of each line, clusters the time, loggers their level; rules search
the text behind them. Bounded work on untrusted text; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from watchdog_train.core.model import Value

LINE_CAP = 2000
"""Characters of a line that are searched."""
_PREFIXES_CAP = 6

Clock = Literal["date", "clock"]
_DAY_S = 86400.0
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_RANK_PREFIX = re.compile(
    r"""\s{0,8}(?:
        \[(?:r|rank|default|trainer|worker_group_rank)[ _]?(?P<torchrun>\d{1,6})\]:?
      | \[\d{1,4},(?P<mpi>\d{1,6})\](?:<std(?:out|err)>)?:
      | \[?rank[ _]?(?P<word>\d{1,6})\]?\s?[:|>]
      | (?P<srun>\d{1,4}):(?=\s)(?!\ \[\w+\.|\ [-\w.]+,\ [-\w.]+\ avg)
      | \(\w{1,60}(?:\(rank=\d+\))?\ pid=\d{1,9}(?:,\ ip=[\d.]{1,40})?\)
      | [\w.-]{1,60}-\d{1,4}:(?=\s)
      | (?=[\d.-]{0,60}[a-z_])[\w.-]{1,60}\s{1,4}\|(?=\s)          # a service's name, no number
      | \[\d{1,9}\](?=\s\[rank)
    )[ ]?""",
    re.VERBOSE | re.IGNORECASE,
)
_TIME_PREFIX = re.compile(
    r"""\s{0,8}[\[(]?(?:
        (?P<year>\d{4})[-/](?P<month>\d{2})[-/](?P<day>\d{2})[T ,_]{1,2}
      | [IWEF](?P<gmonth>\d{1,2})(?P<gday>\d{2})\s
      | (?P<smonth>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}
        \s{1,2}(?P<sday>\d{1,2})\s
      | (?=\d{2}:\d{2}:\d{2})
      )(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})(?P<part>[.,]\d{1,9})?
      (?:Z|[+-]\d{2}:?\d{2})?[\])]?[ ,:|-]{0,4}""",
    re.VERBOSE | re.IGNORECASE,
)
_BOOT_PREFIX = re.compile(r"\s{0,8}\[\s{0,12}\d{1,9}\.\d{3,9}\]\s?")
_GLOG_REST = re.compile(r"(?:\d{1,9}\s)?[\w./-]{1,120}:\d{1,6}\]\s?")
_RANK_INSIDE = re.compile(
    r"\[?\b(?:global[ _])?rank[ :=_]{0,2}\[?(?P<rank>\d{1,6})\b", re.IGNORECASE
)


class LogLine(Value):
    text: str
    """Without the prefixes of launchers, clocks and loggers."""
    rank: int | None = None
    """From the launcher's prefix alone."""
    printer: str = ""
    """A prefix that names no rank: Ray's with a pid, a pod or a service."""
    clock: Clock | None = None
    at: float | None = None
    """Seconds on that clock; the year is ignored, logs of one job do not need it."""


@lru_cache(maxsize=16384)
def read_line(raw: str) -> LogLine:
    """Remove all prefixes, in any order."""
    text = raw[:LINE_CAP].rstrip()
    rank: int | None = None
    printer = ""
    clock: Clock | None = None
    at: float | None = None
    for _ in range(_PREFIXES_CAP):
        match = _RANK_PREFIX.match(text)
        if match:
            found = match["torchrun"] or match["mpi"] or match["word"] or match["srun"]
            rank = int(found) if found is not None and rank is None else rank
            printer = match[0].strip() if found is None else printer
            text = text[match.end() :]
            continue
        match = _TIME_PREFIX.match(text)
        if match:
            clock, at = _time(match) if at is None else (clock, at)
            text = text[match.end() :]
            if match["gmonth"]:
                rest = _GLOG_REST.match(text)
                text = text[rest.end() :] if rest else text
            continue
        match = _BOOT_PREFIX.match(text)
        if match:
            text = text[match.end() :]
            continue
        break
    return LogLine(text=text, rank=rank, printer=printer, clock=clock, at=at)


def _time(match: re.Match[str]) -> tuple[Clock, float]:
    part = float("0." + match["part"][1:]) if match["part"] else 0.0
    seconds = (
        int(match["hour"]) * 3600.0 + int(match["minute"]) * 60.0 + int(match["second"]) + part
    )
    if match["month"] or match["gmonth"]:
        month, day = int(match["month"] or match["gmonth"]), int(match["day"] or match["gday"])
    elif match["smonth"]:
        month, day = _MONTHS.index(match["smonth"].lower()) + 1, int(match["sday"])
    else:
        return "clock", seconds
    return "date", (month * 31 + day) * _DAY_S + seconds


def rank_of(line: LogLine) -> int | None:
    """The rank that a line is about: of its prefix, else the first one that it names."""
    if line.rank is not None:
        return line.rank
    match = _RANK_INSIDE.search(line.text[:300])
    return int(match["rank"]) if match else None


_PROGRESS = re.compile(
    r"""(?:
        (?P<bar>\d{1,12})/(?P<total>\d{1,12})\s\[(?:\d[\d:]*<|[=.>]{3})  # tqdm, Keras
      | (?P<part>\d{1,6}(?:\.\d{1,3})?[kMGT]?)i?B?\s?/\s?(?P<whole>\d{1,6}(?:\.\d{1,3})?[kMGT])i?B?
        \s\[\d[\d:]*<                                            # tqdm of bytes
      | (?P<sent>\d{1,9}(?:\.\d{1,3})?)\ ?MB\ of\ [\d.]{1,12}\ ?MB\ uploaded     # wandb
      | '(?:loss|epoch|train_loss)':\s*['"]?(?P<trainer>[\d.]{1,24})   # transformers
      | \b(?:(?:global|training)[_ ]?)?(?:step|n?iter|iters|iteration|batch|update|num_updates)s?\b
        \s*[:=#|]?\s*\[?\s*(?P<step>\d[\d,]{0,14})
      | \A\s{0,8}(?P<first>\d{1,12}):?\s(?:\|\s(?:train[ _]?)?loss\b|images/sec|[\d.,\ ]{9,40}avg)
      | \bepoch\b:?\s*\[?\d+[\]/:]?\s*\d*\]?\s*\[\s*(?P<inner>\d{1,12})\s*/\s*\d+(?:\s\(\d+%\))?\]
      | \bepoch:?\s(?P<round>\d{1,6})(?:/\d{1,6}\s*\Z|\ \[\d{4}-)
      | \bepoch\b\s*[:=#]?\s*\[?\s*(?P<epoch>\d{1,6})\b
        (?!.{0,20}\b(?:step|iter|batch|it)).{0,40}\bloss
    )""",
    re.VERBOSE | re.IGNORECASE,
)


_OF_THE_SCHEDULER = re.compile(
    r"\s{0,8}(?:(?:slurmstepd|srun|sbatch|scancel|slurmd)\b|(?:error: )?\*{3} (?:JOB|STEP) )"
)
"""Slurm counts its own steps, as in `*** STEP 77.0 ON gpu14 CANCELLED`: no progress."""


def progress_of(text: str) -> tuple[str, float] | None:
    """The counter in a line of progress, and its value: ("bar:total", 120.0); None for others."""
    match = _PROGRESS.search(text[:LINE_CAP])
    if match is None or _OF_THE_SCHEDULER.match(text):
        return None
    kind = match.lastgroup or "step"
    if kind in ("total", "whole"):
        name = text[: match.start()].partition("%")[0][:24].strip(" 0123456789")
        part = match["bar"] if kind == "total" else match["part"]
        return f"bar:{match[kind]}:{name}", _amount(part)
    try:
        return kind, float(match[kind].replace(",", "").rstrip("."))
    except ValueError:
        return None


_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _amount(text: str) -> float:
    """`1.85G` as a number; units of 1000 and 1024 are alike here, where only growth counts."""
    unit = _UNITS.get(text[-1], 1.0)
    return float(text.rstrip("kMGTK")) * unit


def advances(lines: Sequence[LogLine]) -> list[int]:
    """Indices of lines with progress: a counter above its highest value so far."""
    best: dict[tuple[str, int | None], float] = {}
    found = []
    for at, line in enumerate(lines):
        progress = progress_of(line.text)
        if progress is None:
            continue
        (kind, value), known = progress, best.get((progress[0], line.rank), 0.0)
        # A loss rises and falls: printing it is the progress.
        if kind == "trainer" or value > known:
            found.append(at)
        if value > known or value < known / 2:  # a new epoch counts from the start
            best[kind, line.rank] = value
    return found
