"""Text of any kind -> stacks, raised exceptions and log lines. Pure, linear, total.

A file may hold several dumps, of several processes, between lines of a log, and several ranks may
print into one stream: each stream is read by a reader of its own.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from watchdog_train.core.diagnosis.log_lines import read_line
from watchdog_train.core.diagnosis.stacks import (
    FRAMES_CAP,
    THREADS_CAP,
    Frame,
    ThreadStack,
    both_ends,
    printable,
)
from watchdog_train.core.model import Value
from watchdog_train.evidence.text import formats, tracebacks
from watchdog_train.evidence.text.formats import Head, ProcessHead, Tool
from watchdog_train.evidence.text.mains import with_main

LINES_CAP = 200_000
_LINE_CAP = 4000
_MESSAGE_CAP, _SOURCE_CAP = 500, 200
_SKIPPED = re.compile(
    r"\s*(?:\.\.\.|\(no frames\)|<no Python frame>|(?:Arguments|Locals):|[~^]{1,400}|"
    r"\[Previous line repeated \d+ more times?\]|stacks by .{0,40}|Python v?\d+\.\d.*|command: .*|"
    r"no stack: .*)\s*\Z"
)
_INTERRUPTS = ("KeyboardInterrupt", "SignalException", "SystemExit")


class Dump(Value):
    """The stacks of one process at one moment."""

    tool: Tool
    threads: tuple[ThreadStack, ...]
    pid: int | None = None
    rank: int | None = None
    """From the launcher's prefix of its lines."""
    command: str | None = None
    state: str | None = None
    cpu_share: float | None = None


class Raised(Value):
    """A Python traceback."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    """Innermost first."""
    rank: int | None = None
    owner: str | None = None
    """The thread or process that it names, if it does."""
    at_line: int = 0
    follows: tracebacks.Follows | None = None

    @property
    def interrupted(self) -> bool:
        """Ended from outside: then it shows where the process was, not what went wrong."""
        return self.type.rpartition(".")[2] in _INTERRUPTS


class Reading(Value):
    """All that one text holds."""

    dumps: tuple[Dump, ...] = ()
    raised: tuple[Raised, ...] = ()
    log: tuple[str, ...] = ()
    """Every line that is no part of a dump, tracebacks included."""


def read_text(text: str) -> Reading:
    """Everything that is recognised in the text; what is not is a log line. Never raises."""
    streams: dict[tuple[int | None, int | None], _Stream] = {}
    log: list[str] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:LINES_CAP]
    for raw in lines:
        line = raw[:_LINE_CAP].rstrip().removeprefix("^C")
        found = read_line(line)
        key = (found.rank, found.pid)
        body = line if key == (None, None) and found.at is None else _body(line, found.text)
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = _Stream(found.rank)
        taken = stream.feed(body, len(log))
        log += stream.returned()
        if not taken and line.strip():
            log.append(line)
    for stream in streams.values():
        stream.close()
        log += stream.returned()
    return Reading(
        dumps=tuple(dump for stream in streams.values() for dump in stream.dumps),
        raised=tuple(
            sorted((r for s in streams.values() for r in s.raised), key=lambda r: r.at_line)
        ),
        log=tuple(log),
    )


def _body(line: str, stripped: str) -> str:
    """The text behind the prefixes with its own indentation, which tells frames from lines."""
    return line[max(0, line.find(stripped)) :] if stripped else ""


class _Stream:
    """One printer's lines, in order."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.dumps: list[Dump] = []
        self.raised: list[Raised] = []
        self._returned: list[str] = []
        self._pending: tuple[ProcessHead, str] | None = None
        self._process: ProcessHead | None = None
        self._head: Head | None = None
        self._frames: list[Frame] = []
        self._threads: list[ThreadStack] = []
        self._tool: Tool = "traceback"
        """Of these."""
        self._traceback: list[Frame] | None = None
        self._owner: str | None = None
        self._link: tracebacks.Follows | None = None
        self._follows: tracebacks.Follows | None = None
        self._group: Literal["first", "rest"] | None = None
        """In an exception group: before its first leaf has begun, or later."""
        self._message_goes_on = False
        self._box = ""
        """The first line of a frame in a box."""

    def returned(self) -> list[str]:
        """Lines that looked like a head and were none."""
        lines, self._returned = self._returned, []
        return lines

    def feed(self, line: str, log_position: int) -> bool:
        """Whether the line belongs to a dump (and not to the log)."""
        if self._group is not None:
            line = self._of_group(line)
        if self._message_goes_on:
            self._add_to_message(line)
        if self._traceback is not None:
            self._in_traceback(line, log_position)
            if self._traceback is not None:
                return False
        start = tracebacks.starts_traceback(line)
        if start is not None:
            self._end_dump()
            self._traceback = []
            self._follows, self._link = self._link, None
            what = start["what"]
            if what == "Original ":
                self._follows = "original"
            elif what is not None and self._group is None:
                self._group = "first"
            return False
        if self._head is None and (
            tracebacks.is_syntax_error(line) or tracebacks.is_headless(line)
        ):
            self._end_dump()
            self._traceback, self._follows = [], None
            self._in_traceback(line, log_position)
            return False
        head = formats.thread_head(line)
        if head is not None and (head.tool != "wtrain" or self._our_dump()):
            self._start_thread(head)
            return True
        if self._head is not None and self._in_thread(line):
            return True
        if formats.bare_fault_frame(line):
            self._start_thread(Head(tool="fault handler"))
            return self._in_thread(line)
        return self._between(line)

    def close(self) -> None:
        """The text is at its end."""
        self._end_dump()
        if self._traceback:
            self._end_traceback("", "", 0)
        self._drop_pending()

    def _our_dump(self) -> bool:
        process = self._pending[0] if self._pending else self._process
        return process is not None and (process.state is not None or process.command is None)

    def _between(self, line: str) -> bool:
        """A line outside of any thread."""
        process = formats.process_head(line)
        if process is not None:
            self._end_dump()
            self._drop_pending()
            self._pending = (process, line)
            return True
        inside = self._pending is not None or self._threads
        if inside and (not line.strip() or _SKIPPED.match(line)):
            return True
        self._drop_pending()
        if self._threads and line.strip():
            self._end_dump()
        owner = tracebacks.traceback_owner(line)
        if owner:
            self._owner = owner["thread"] or owner["process"] or "ignored"
        if line.strip():
            self._link = tracebacks.link(line)
        return False

    def _of_group(self, line: str) -> str:
        """The line without what draws the tree of an exception group."""
        found = tracebacks.group_line(line)
        if found is None:
            self._group = None
            return line
        if found["leaf"] is not None:
            first = self._group == "first" and found["leaf"] == "1"
            self._link = "original" if first else "sibling"
            self._group = self._group if first else "rest"
        return found["rest"]

    def _add_to_message(self, line: str) -> None:
        """`Error(s) in loading state_dict for Net:` says what is wrong in the next line."""
        self._message_goes_on = False
        if line[:1] in (" ", "\t") and line.strip():
            message = f"{self.raised[-1].message} {line.strip()}".strip()[:_MESSAGE_CAP]
            self.raised[-1] = msgspec.structs.replace(self.raised[-1], message=message)

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._returned.append(self._pending[1])
            self._pending = None

    def _start_thread(self, head: Head) -> None:
        self._end_thread()
        if self._pending is not None or (self._threads and self._tool != head.tool):
            self._end_dump()
        if self._pending is not None:
            self._process, self._pending = self._pending[0], None
        self._head, self._frames = head, []

    def _in_thread(self, line: str) -> bool:
        head = self._head
        if head is None:
            return False
        frame = formats.frame(line, head.tool)
        if frame is not None:
            if len(self._frames) < FRAMES_CAP:
                self._frames.append(frame)
            return True
        if line.strip() and (line[0] in " \t" or _SKIPPED.match(line)):
            return True  # locals, source text, gaps
        self._end_thread()
        return not line.strip()

    def _end_thread(self) -> None:
        head, frames = self._head, self._frames
        self._head, self._frames = None, []
        if head is None or len(self._threads) >= THREADS_CAP:
            return
        self._tool = head.tool
        self._threads.append(
            ThreadStack(
                frames=tuple(frames),
                name=head.name,
                os_id=head.os_id,
                main=head.main,
                active=head.active,
                owns_gil=head.owns_gil,
            )
        )

    def _end_dump(self) -> None:
        self._end_thread()
        if self._threads:
            process = self._process
            pid = process.pid if process else None
            oldest_last = self._tool == "fault handler"
            self.dumps.append(
                Dump(
                    tool=self._tool,
                    threads=with_main(self._threads, pid, oldest_last=oldest_last),
                    pid=pid,
                    rank=self.rank,
                    command=process.command if process else None,
                    state=process.state if process else None,
                    cpu_share=process.cpu_share if process else None,
                )
            )
            self._threads, self._process = [], None

    def _in_traceback(self, line: str, log_position: int) -> None:
        frames = self._traceback
        if frames is None:
            return
        inside = tracebacks.boxed(line)
        if inside is not None:
            self._in_box(inside, frames)
            return
        frame = formats.frame(line, "traceback") if 'File "' in line else None
        if frame is not None:
            frames.append(frame)
            return
        if not line.strip() or line[0] in " \t" or _SKIPPED.match(line):
            if frames and frames[-1].source is None and line.strip() and not _SKIPPED.match(line):
                source = printable(line.strip()[:_SOURCE_CAP])
                frames[-1] = msgspec.structs.replace(frames[-1], source=source)
            return
        found = tracebacks.raised(line)
        self._end_traceback(*(found or ("", line)), log_position)

    def _in_box(self, text: str, frames: list[Frame]) -> None:
        """A frame may take two lines, cut anywhere."""
        for joined in (self._box + text, f"{self._box} {text}"):
            found = tracebacks.boxed_frame(joined.strip())
            if found is not None:
                frames.append(formats.a_frame(*found))
                break
        self._box = "" if found or not text.startswith(("/", "~")) else text

    def _end_traceback(self, kind: str, message: str, log_position: int) -> None:
        frames, self._traceback = self._traceback or [], None
        if len(frames) > FRAMES_CAP:
            frames = [*frames[: FRAMES_CAP // 2], *frames[-FRAMES_CAP // 2 :]]
        if frames and len(self.raised) < THREADS_CAP:
            self.raised.append(
                Raised(
                    type=kind,
                    message=both_ends(message, _MESSAGE_CAP),
                    frames=tuple(reversed(frames)),
                    rank=self.rank,
                    owner=self._owner,
                    at_line=log_position,
                    follows=self._follows,
                )
            )
            self._message_goes_on = not message or message.endswith(":")
        self._owner, self._link = None, None
