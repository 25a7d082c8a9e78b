"""Paths given to `wtrain diagnose` -> evidence, and the failures in their texts."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from watchdog_train.core.diagnosis.facts import CollectiveFact, Evidence, LogText, ProcessEvidence
from watchdog_train.core.diagnosis.idle import WORKER_LOOP, places_at_work
from watchdog_train.core.diagnosis.log_lines import advances, progress_of, read_line
from watchdog_train.core.diagnosis.log_search import MOVED_ON
from watchdog_train.core.diagnosis.recorder import read_recorder
from watchdog_train.core.diagnosis.stacks import frame_matches, own_frames
from watchdog_train.core.model import ExceptionFact, ExitStatus, Role, Value
from watchdog_train.core.model.exceptions import CrashFact, Failure
from watchdog_train.errors import WtrainError
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.bundle import VERDICT_FILE, read_bundle, read_logs
from watchdog_train.evidence.dumps import dumps
from watchdog_train.evidence.logs import clean_lines
from watchdog_train.evidence.machines import machine_folders, together
from watchdog_train.evidence.recorders import read_dump
from watchdog_train.evidence.tracebacks import failures, is_wrapper, lines_of
from watchdog_train.trusted_files import read_regular

HEAD_BYTES, TAIL_BYTES, _FILES_CAP = 2 << 20, 4 << 20, 3000
_SHAPE_CHARS, _LINES_CAP = 120, 4000
_SAME_LINES, _LAST_LINES = 30, 500
"""Of lines that differ in numbers alone the first ones are searched, and the end of the log."""
_NOT_LETTERS = re.compile(r"[^A-Za-z]+")
_WHO = re.compile(
    r"(?<![a-z])(?:rank[_\-. ]?(?P<rank>\d{1,6})(?![\d-]?only)|worker[_\-. ]?(?P<worker>\d{1,6})|"
    r"pid[_\-. ]?(?P<pid>\d{1,10}))|(?:\A|/)(?P<task>\d{1,5})/std(?:out|err)"
)
"""In the name of a file and of its folder: rank0-worker1.pid13.txt, 0/stderr.log of torchrun."""
_LAUNCHER = "launch_agent|launch_command|_invoke_run (torch/distributed/*|accelerate/*)"
_CONSEQUENCE = re.compile(
    r"[Cc]onnection (?:closed|reset|refused|aborted)|Broken ?[Pp]ipe|EOFError|ncclRemoteError|"
    r"NCCL communicator was aborted|remote process exited|Watchdog caught collective|"
    r"Some NCCL operations have failed|Worker exited prematurely|exited unexpectedly|"
    r"root cause|previous error|error above"
)
"""Exceptions that a process raises because another one has failed."""
_INTERRUPTS = ("KeyboardInterrupt", "SignalException", "SystemExit")
_INTERRUPTED = 7


class Inputs(Value):
    evidence: Evidence
    failures: tuple[Failure, ...]
    """The cause first, then possible consequences."""
    read: tuple[str, ...]


def read_inputs(paths: Sequence[str]) -> Inputs:
    """The evidence at these places together.

    Raises:
        WtrainError: a path does not exist, or nothing in them can be read.
    """
    texts = Texts()
    for path in paths:
        folders = _bundles(Path(path))
        for folder in folders:
            texts.add_bundle(folder)
        for name, content in _contents(path) if not folders else ():
            texts.add(name, content)
    if not texts.read:
        raise WtrainError(
            "there is no text in it",
            context=", ".join(paths),
            hint="wtrain diagnose takes logs, py-spy and faulthandler dumps, and stall folders",
            reference="evidence-empty",
        )
    return texts.together()


def _bundles(folder: Path) -> list[Path]:
    """A stall folder with those of its machines; of a run directory the newest one."""
    if not (folder / VERDICT_FILE).is_file():
        newest = sorted((folder / "stalls").glob(f"[0-9]*/{VERDICT_FILE}"))[-1:]
        return [each for one in newest for each in _bundles(one.parent)]
    return [folder, *machine_folders(folder)]


def _contents(path: str) -> Iterator[tuple[str, bytes]]:
    """Name and content, at most both ends of it, of a file or of all files in a folder."""
    if path == "-":
        yield path, sys.stdin.buffer.read(HEAD_BYTES + TAIL_BYTES)
        return
    if not os.path.exists(path):
        raise WtrainError(
            "there is no such file or folder",
            context=path,
            hint="name a stall folder, a dump, a log, or - to paste",
            reference="evidence-missing",
        )
    file = Path(path).absolute()
    for each in sorted(file.rglob("*"))[:_FILES_CAP] if file.is_dir() else [file]:
        content, size = read_regular(each, HEAD_BYTES, follow=True) or (b"", 0)
        if (rest := min(TAIL_BYTES, size - len(content))) > 0:
            end = read_regular(each, rest, from_end=True, follow=True)
            content += b"\n" + (end[0] if end is not None else b"")
        yield "/".join(each.parts[-2:]), content


class Texts:
    """Join what several files have on each process; a pid below zero is unknown."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self._bundles: list[Evidence] = []
        self._processes: dict[tuple[object, ...], ProcessEvidence] = {}
        self._logs: list[LogText] = []
        self._collectives: list[CollectiveFact] = []
        self._groups: list[list[Failure]] = []
        """Failures by printer."""

    def add_bundle(self, folder: Path) -> None:
        """A stall folder; one without a verdict is ignored."""
        bundle = read_bundle(folder)
        if bundle is None:
            return
        self.read.append(str(folder))
        self._bundles.append(replace(bundle.evidence, logs=read_logs(folder)))
        self._groups += [[_of_crash(fact)] for fact in [bundle.verdict.crash] if fact]

    def add(self, name: str, content: bytes) -> None:
        """One file of any kind; a binary one is ignored."""
        named = [one.groupdict() for one in _WHO.finditer(name)]
        who = {key: int(value) for part in named for key, value in part.items() if value}
        rank = who.get("rank", who.get("task"))
        recorded = read_dump(content)
        if recorded is None and (b"\0" in content[:4096] or not content.strip()):
            return
        self.read.append(name)
        if recorded is not None:
            self._collectives += read_recorder(recorded, rank)
            return
        text = content.decode("utf-8", "replace")
        for dump in pyspy.dumped(text) or dumps(text):
            of = rank if dump.rank is None else dump.rank
            self._add_process(replace(dump, rank=of, worker=who.get("worker")), name, who)
        by_printer: dict[tuple[int | None, str], list[Failure]] = {}
        for one in _not_handled(text):
            of = rank if one.fact.rank is None else one.fact.rank
            told = replace(one, fact=replace(one.fact, rank=of))
            by_printer.setdefault((of, one.printer), []).append(told)
        self._groups += by_printer.values()
        self._logs.append(LogText(source=name, lines=_searched(text), rank=rank))

    def _add_process(self, dump: ProcessEvidence, name: str, who: Mapping[str, int]) -> None:
        """A second dump of a process shows whether it moved."""
        pid = dump.pid or who.get("pid")
        key = (name, dump.rank) if pid is None else (pid, dump.rank)
        known = self._processes.get(key)
        changed = known.changed if known is not None else None
        if known is not None and known.how == dump.how:
            changed = changed or places_at_work(known.threads) != places_at_work(dump.threads)
        self._processes[key] = replace(
            dump,
            pid=pid or -1 - len(self._processes) if known is None else known.pid,
            role="worker" if dump.worker is not None else _role(dump),
            changed=changed,
            part=sum(one.pid == pid for other, one in self._processes.items() if other != key),
        )

    def together(self) -> Inputs:
        """Of a crash the first failure; otherwise all processes with stacks."""
        told = cause_first(self._groups)
        crashed = bool(told) and _weight(told[0]) < _INTERRUPTED
        number = told[0].signal if crashed else None
        ranks = {one.rank: one.pid for one in self._processes.values() if one.role == "rank"}
        only = next(iter(ranks.values())) if len(ranks) == 1 else 0
        processes = [
            replace(one, ppid=ranks.get(one.rank, only) if one.role != "rank" else 0)
            for one in self._processes.values()
        ]
        found = Evidence(
            why="crash" if crashed else "manual",
            processes=() if crashed else tuple(processes),
            logs=tuple(self._logs),
            collectives=tuple(self._collectives),
            exceptions=tuple(one.fact for one in told if one.fact.type),
            exit=ExitStatus(code=None, signal=number, how_known="parent") if number else None,
        )
        only_bundles = self._bundles and not (self._logs or self._collectives)
        whole = together([*self._bundles, *([] if only_bundles else [found])])
        return Inputs(evidence=whole, failures=told, read=tuple(self.read))


def _of_crash(crash: CrashFact) -> Failure:
    if crash.exception is not None:
        return Failure(fact=crash.exception, shown="traceback")
    said = ExceptionFact(type="", message=crash.said, source="output", rank=crash.rank)
    return Failure(fact=said, shown="signal", signal=crash.signal)


def _role(dump: ProcessEvidence) -> Role:
    main = dump.main
    frames = own_frames(main.frames) if main is not None else ()
    if any(frame_matches(WORKER_LOOP, frame) for frame in frames):
        return "worker"
    return "launcher" if any(frame_matches(_LAUNCHER, frame) for frame in frames) else "rank"


def _not_handled(text: str) -> tuple[Failure, ...]:
    """Failures after which the training did not continue to the end of the text."""
    lines = [read_line(line) for line in lines_of(text)]
    last = next((line for line in reversed(lines) if line.text.strip()), None)
    handled = 0
    if last is not None and progress_of(last.text) is not None:
        handled = next(iter(advances(lines)[-MOVED_ON:]), 0)
    found = (one for one in failures(text) if one.line >= handled)
    return tuple(replace(one, at=lines[one.line].at) for one in found)


def _searched(text: str) -> tuple[str, ...]:
    """The lines that families search: a night of progress is one line ten thousand times."""
    seen = Counter[str]()
    kept: list[str] = []
    lines = [line for line in lines_of(text) if line.strip()]
    for line in lines[:-_LAST_LINES]:
        shape = _NOT_LETTERS.sub("", line[:_SHAPE_CHARS])
        seen[shape] += 1
        kept += [line] if seen[shape] <= _SAME_LINES else []
    kept = [*kept[:_LINES_CAP], *kept[_LINES_CAP:][-_LINES_CAP:]]
    return clean_lines([*kept, *lines[-_LAST_LINES:]])


def _weight(failure: Failure) -> int:
    """The smallest is the likeliest cause of the others."""
    fact = failure.fact
    if fact.type.rpartition(".")[2] in _INTERRUPTS:
        return _INTERRUPTED
    if is_wrapper(fact):
        return 6
    if failure.signal in (signal.SIGTERM, signal.SIGABRT):  # of a C++ exception, or of a launcher
        return 5
    if _CONSEQUENCE.search(f"{fact.type}: {fact.message}"):
        return 4
    by_kind = {"signal": 3, "cut": 2, "line": 1}
    return by_kind.get(failure.shown, int(fact.thread.startswith("Thread")))


def cause_first(groups: Sequence[Sequence[Failure]]) -> tuple[Failure, ...]:
    """The likeliest cause, of several the first in time; then the others.

    The last likely one that a process prints has ended it. In the output of a launcher's ranks
    without a rank prefix the first one counts.
    """
    every = [one for group in groups for one in group]
    launched = any(is_wrapper(one.fact) or "Process" in one.fact.thread for one in every)
    of_groups = []
    for group in groups:
        least = min(map(_weight, group))
        likely = [one for one in group if _weight(one) == least]
        of_groups.append(likely[0 if launched and likely[0].fact.rank is None else -1])
    timed = all(one.at is not None for one in of_groups)
    of_groups.sort(key=lambda one: (_weight(one), (one.at or 0.0) if timed else 0.0))
    others = (one for one in every if one is not of_groups[0] and not is_wrapper(one.fact))
    return (*of_groups[:1], *others)
