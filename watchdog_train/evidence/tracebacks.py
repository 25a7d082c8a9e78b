"""Text that programs print -> the exceptions and fatal errors in it. Pure, linear, total.

Several ranks may print into one text: lines with the same launcher's prefix are read together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import dropwhile, takewhile
from typing import Literal

from msgspec.structs import replace

from watchdog_train.core.diagnosis.log_lines import LINE_CAP, read_line
from watchdog_train.core.diagnosis.stacks import both_ends, is_own_file, printable
from watchdog_train.core.model import CodePlace, ExceptionCause, ExceptionFact, signal_in_code
from watchdog_train.core.model.exceptions import Failure, Shown
from watchdog_train.evidence.logs import clean_line
from watchdog_train.evidence.redact import redact_text

Source = Literal["hook", "elastic", "output"]
Line = tuple[int, str]
"""Its number in the text, from 0, and what its printer wrote."""
_LINES_CAP, _LINE_CAP, _MESSAGE_CAP, _SOURCE_CAP = 200_000, 4000, 500, 200
_FAILURES_CAP, _FRAMES_KEPT, _FRAMES_CAP, _CHAIN_CAP = 512, 20, 400, 8
_FOREIGN_CAP, _DUMP_CAP = 40, 4000
"""Lines of other printers inside a traceback, after which its end is lost; lines of a dump."""
_HEAD = re.compile(r"Traceback \(most recent call last\)(?::?\s*|[ ─╮]*)\Z")
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""Copies of a terminal often lack the escape character."""
FRAME = re.compile(
    r"\s*File \"(?P<file>[^\"\n]{1,1000})\", line (?P<line>\d{1,9})"
    r"(?P<comma>,?)(?: in (?P<name>[^\n]{1,200}?))?\s*\Z"
)
"""Of a traceback; without its comma of the fault handler."""
_BOXED = re.compile(
    r"\s*│ (?P<file>(?:[~/]|[A-Z]:)[^\n]{1,400}?):(?P<line>\d{1,7}) in (?P<name>\S{1,200})\s*│"
)
"""A frame as rich prints it."""
_TREE = re.compile(r"(?m)^ {2,80}[|+](?:-[-+]*(?: 1 -*)?| ?)(?=[ \w]|$)")
_OTHER_MEMBERS = re.compile(r"(?m)^ {2,80}\+-[-+]* (?:[2-9]|\d\d+) -*$(?:\n {2,80}[|+].*)*")
"""What draws an exception group, and all of its members but the first."""
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}(?:[A-Z]\w{0,80}(?:\(\w{1,80}\))?|"
    r"\w{0,80}(?:[Ee]rror|[Tt]imeout)))(?::\s?(?P<message>.*))?\s*\Z"
)
_SURELY = re.compile(
    r".*(?:Error|Exception|Interrupt|Exit|Timeout|Failure|NotFound)(?:\(\w+\))?\Z|"
    r".*\.(?:error|timeout)\Z"
)
"""Types that are read also without a frame before them."""
_LOGGED = re.compile(
    r"\b(?:[Ee]rror|ERROR|FATAL|CRITICAL|[Ee]xception)\b[^\n]{0,120}?[\s:|-]"
    r"(?P<type>(?:\w{1,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)): (?P<message>.+)"
)
"""A line of a logger with the level of an error."""
_WRAPPERS = re.compile(
    r"(?:.*\.)?(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|"
    r"(?:Base)?ExceptionGroup|_?RemoteTraceback|CalledProcessError|RayTaskError(?:\(\w+\))?)\Z"
)
"""What a launcher or a parent raises because its child has failed."""
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (?P<worker>\d{1,6})")
_OWNER = re.compile(
    r"Exception in thread (?P<thread>[^:\n]{1,100}):|Process (?P<process>[\w:-]{1,60}):\s*\Z|"
    r"(?P<ignored>Exception ignored in|Error in atexit)"
)
_MAIN, _IGNORED = ("", "MainThread", "MainProcess"), "ignored"
_SOURCE_LINE = re.compile(r"[ \t](?!.*\[Previous line).*[^ \t~^]")
_LINK = re.compile(
    r"The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred|"
    r"(?P<original>terminated with the following error:)"
)
"""How a traceback belongs to the one before it. original: the one before carries it."""
_FATAL = re.compile(r"(?P<type>Fatal Python error|Windows fatal exception): (?P<message>.+)")
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<type>[^'\n]{1,200})'")
_SHELL = r"(?:  | \(core dumped\)|\s*\Z)"
"""Behind a signal's name where a shell prints it."""
_SIGNAL = re.compile(
    rf"(?P<s9>\b[Kk]illed{_SHELL}|Killed process \d|oom[-_]kill|OOM ?[Kk]illed|: Out Of Memory\b)|"
    r"(?P<s11>[Ss]egmentation fault|\bsegfault at \w)|(?P<s7>\bBus error\b)|"
    rf"(?P<s6>\bAborted{_SHELL})|(?P<s8>\bFloating point exception{_SHELL})|"
    rf"(?P<s4>\bIllegal instruction{_SHELL})|(?P<s15>\bCANCELLED AT \S|\bTerminated{_SHELL})"
)
_CODE = re.compile(
    r"(?:exit(?:ed with)? ?(?:code|status)|return code)[ :=(]{1,6}(?P<code>-?\d{1,3})\b"
)
"""As shells and launchers print it: -9, 137."""


def failures(text: str, source: Source = "output") -> tuple[Failure, ...]:
    """Everything that ended something, in the order of the text; a chain is one. Never raises."""
    readers = [_Reader(*of, lines, source) for of, lines in streams(text).items()]
    found = [failure for reader in readers for failure in reader.read()]
    return tuple(sorted(found, key=lambda each: each.line))


def lines_of(text: str) -> list[str]:
    """Without colours; a progress bar that is drawn again begins a new line."""
    plain = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    if "Exception Group Traceback" in plain:
        plain = _OTHER_MEMBERS.sub("", plain).replace("+ Exception Group", "  Exception Group")
        plain = _TREE.sub("", plain)
    return [one[:_LINE_CAP].rstrip().removeprefix("^C") for one in plain.split("\n")[:_LINES_CAP]]


def streams(text: str) -> dict[tuple[int | None, str], list[Line]]:
    """The lines of each printer, by its rank or its prefix, with their indentation."""
    found: dict[tuple[int | None, str], list[Line]] = {}
    for number, raw in enumerate(lines_of(text)):
        line = read_line(raw)
        body = raw[max(0, min(len(raw), LINE_CAP) - len(line.text)) :]  # also what is capped there
        quoted = "\\n  File " in body  # in JSON
        parts = body.replace('\\"', '"').split("\\n") if quoted else [body]
        found.setdefault((line.rank, line.printer), []).extend((number, part) for part in parts)
    return found


def exceptions(text: str, source: Source) -> tuple[ExceptionFact, ...]:
    """All that were not caught, in the order of the text."""
    return tuple(each.fact for each in failures(text, source) if each.shown == "traceback")


def is_wrapper(fact: ExceptionFact) -> bool:
    return _WRAPPERS.match(fact.type) is not None


def last_of(found: Iterable[ExceptionFact]) -> ExceptionFact | None:
    """The last one that is no wrapper."""
    return next((fact for fact in reversed(tuple(found)) if not is_wrapper(fact)), None)


class _Reader:
    def __init__(
        self, rank: int | None, printer: str, lines: Sequence[Line], source: Source
    ) -> None:
        self._rank, self._printer = rank, printer
        self._lines = lines
        self._source = source
        self._found: list[Failure] = []
        self._owner = self._link = ""

    def read(self) -> list[Failure]:
        at = 0
        while at < len(self._lines) and len(self._found) < _FAILURES_CAP:
            at = self._read_at(at)
        return self._found

    def _line(self, at: int) -> str:
        return self._lines[at][1] if at < len(self._lines) else ""

    def _read_at(self, at: int) -> int:
        """Reads what begins at this line; the position behind it."""
        line = self._line(at)
        frame, raised = FRAME.match(line), _RAISED.match(line)
        if raised is None or not _SURELY.match(raised["type"]):
            raised = _LOGGED.search(line)
        if (head := _HEAD.search(line)) is not None:
            before = line[: head.start()].removesuffix("Original ")
            self._link = "original" if len(before) < head.start() else self._link
            return self._traceback(at + 1, "" if "─" in before else before)
        if frame is not None and (frame["comma"] or not frame["name"]):
            prefix = " " * (len(line) - len(line.lstrip()) - 2)
            return self._traceback(at, prefix)  # its head was cut off; a SyntaxError has none
        if (link := _LINK.search(line)) is not None:
            self._link = "original" if link["original"] else "cause"
        elif (owner := _OWNER.match(line)) is not None:
            self._owner = owner["thread"] or owner["process"] or _IGNORED
        elif (fatal := _FATAL.search(line)) is not None:
            self._add(at, "fatal", fatal["type"], fatal["message"], self._dumped_below(at + 1))
        elif (thrown := _THROWN.search(line)) is not None:
            self._add(at, "line", thrown["type"], self._line(at + 1).partition("what():  ")[2])
        elif raised is not None:
            self._add(at, "line", raised["type"], self._message(at, raised))
        elif _signal_in(line) is not None:
            self._add(at, "signal", "", line.strip())
        return at + 1

    def _traceback(self, at: int, prefix: str) -> int:
        """`prefix`: before its head, as loggers and quotes have it before every line."""
        frames: list[CodePlace] = []
        foreign = 0
        while at < len(self._lines) and foreign < _FOREIGN_CAP and not _HEAD.search(self._line(at)):
            line = self._line(at).removeprefix(prefix)
            frame, raised = FRAME.match(line) or _BOXED.match(line), _RAISED.match(line)
            if frame is not None:
                frames.append(_place(frame))
                foreign = 0
                del frames[_FRAMES_CAP // 2 : -_FRAMES_CAP // 2]
            elif raised and ((frames and not foreign) or _SURELY.match(raised["type"])):
                self._add(at, "traceback", raised["type"], self._message(at, raised), frames)
                return at + 1
            elif line[:1] not in ("", " ", "\t", "│", "╰"):
                foreign += 1
            elif frames and not frames[-1].source and _SOURCE_LINE.match(line):
                source = redact_text(printable(line.strip()[:_SOURCE_CAP]))
                frames[-1] = replace(frames[-1], source=source)
            at += 1
        if frames:
            self._add(at - 1, "cut", "", "", frames)
        return at

    def _dumped_below(self, at: int) -> list[CodePlace]:
        """What the fault handler prints of the thread that ran, outermost frame first."""
        below = [line for _, line in self._lines[at : at + _DUMP_CAP]]
        current = (n for n, line in enumerate(below) if "Current thread" in line)
        frames = map(FRAME.match, below[next(current, 0) :])
        dumped = takewhile(bool, dropwhile(lambda frame: not frame, frames))
        return [_place(frame) for frame in dumped if frame and not frame["comma"]][::-1]

    def _message(self, at: int, raised: re.Match[str]) -> str:
        """`Error(s) in loading state_dict for Net:` says what is wrong in the next line."""
        message, after = raised["message"] or "", self._line(at + 1)
        if after[:1] in (" ", "\t") and (not message or message.endswith(":")):
            message = f"{message} {after.strip()}".strip()
        return both_ends(message, _MESSAGE_CAP)

    def _add(
        self, at: int, shown: Shown, kind: str, message: str, frames: Sequence[CodePlace] = ()
    ) -> None:
        """`frames`: innermost last."""
        owner, link, self._owner, self._link = self._owner, self._link, "", ""
        if owner == _IGNORED:
            return
        if frames and frames[0].file != "<string>":  # no script of python -c: made by exec
            frames = [replace(one, own=one.own and one.file != "<string>") for one in frames]
        fact = ExceptionFact(
            type=kind,
            message=clean_line(message),
            source=self._source,
            rank=self._rank,
            thread="" if owner in _MAIN else owner,
            raised=frames[-1] if frames else None,
            own=next((place for place in reversed(frames) if place.own), None),
            frames=(*frames[:1], *frames[1:][1 - _FRAMES_KEPT :]),
        )
        if link and self._found and frames:
            last = self._found.pop()
            if shown == "cut":
                fact, shown = last.fact, last.shown
            else:
                fact = _joined(last.fact, fact, original=link == "original")
        number, line = self._lines[at]
        signal = _signal_in(line) if shown in ("fatal", "signal") else None
        self._found.append(
            Failure(fact=fact, shown=shown, signal=signal, line=number, printer=self._printer)
        )


def _place(frame: re.Match[str]) -> CodePlace:
    file = printable(frame["file"].strip())
    function = printable((frame["name"] or "<module>").strip())
    return CodePlace(file=file, line=int(frame["line"]), function=function, own=is_own_file(file))


def _signal_in(line: str) -> int | None:
    """The signal that ended a process, by a line about it."""
    named, code = _SIGNAL.search(line), _CODE.search(line)
    if named is not None and named.lastgroup is not None:
        return int(named.lastgroup[1:])
    number = signal_in_code(int(code["code"])) if code is not None else 0
    return number if 0 < number < 65 else None


def _joined(before: ExceptionFact, fact: ExceptionFact, *, original: bool) -> ExceptionFact:
    if original:
        in_worker = _IN_WORKER.match(before.message)
        worker = int(in_worker["worker"]) if in_worker else None
        return replace(fact, chain=before.chain, worker=worker)
    if is_wrapper(fact) or (before.type, before.message) == (fact.type, fact.message):
        return before  # carried over from another process
    cause = ExceptionCause(type=before.type, message=before.message)
    return replace(fact, chain=(*before.chain, cause)[-_CHAIN_CAP:])
