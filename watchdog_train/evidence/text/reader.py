"""Text of any kind -> stacks, raised exceptions, kernel frames and log lines. Pure, linear, total.

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
_NEXT_THREAD = re.compile(r"\(gdb\) (?:thread \d|bt\b|where\b)")
_SKIPPED = re.compile(
    r"\s*(?:\.\.\.|\(no frames\)|<no Python frame>|(?:Arguments|Locals):|[~^]{1,400}|"
    r"\(frame information optimized out\)|\[Previous line repeated \d+ more times?\]|"
    r"#\d+ .*|\(gdb\).*|Thread \d+|--Type <.*|stacks by .{0,40}|Python v?\d+\.\d.*|command: .*|"
    r"no stack: .*|Call graph:|-{4,}|(?:Process|Path|Load Address|Identifier|Version|Code Type|"
    r"Platform|Parent Process|Target Type|Date/Time|Launch Time|OS Version|Report Version|"
    r"Analysis Tool|Physical footprint[\w ()]*): .*)\s*\Z"
)
_STOPPED = re.compile(r"\*\*\* SIG(?:TERM|INT|QUIT|HUP|USR[12])\b|`Termination signal`")
"""Only then a C++ stack shows where the process was, and not where it failed."""
_FAILED = re.compile(r"(?:received|terminated with) signal SIG(?:SEGV|BUS|ILL|FPE)\b")
"""Then a debugger's stack shows where it failed, too."""
_MARKS = ("->", "--")
"""Before the line of source at which IPython's frame stands."""
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
    kernel: tuple[str, ...] = ()
    """Frames of kernel stacks."""
    log: tuple[str, ...] = ()
    """Every line that is no part of a dump, tracebacks included."""


def read_text(text: str) -> Reading:
    """Everything that is recognised in the text; what is not is a log line. Never raises."""
    streams: dict[tuple[int | None, int | None], _Stream] = {}
    log: list[str] = []
    kernel: list[str] = []
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
        frame = None if taken else tracebacks.kernel_frame(body)
        if frame is not None and len(kernel) < FRAMES_CAP:
            kernel.append(frame)
        log += stream.returned()
        if not taken and line.strip():
            log.append(line)
    for stream in streams.values():
        stream.close()
        log += stream.returned()
    stopped, failed = _STOPPED.search(text), _FAILED.search(text)
    return Reading(
        dumps=tuple(
            dump
            for stream in streams.values()
            for dump in stream.dumps
            if (dump.tool != "C++" or stopped) and (dump.tool != "gdb" or not failed)
        ),
        raised=tuple(
            sorted((r for s in streams.values() for r in s.raised), key=lambda r: r.at_line)
        ),
        kernel=tuple(kernel),
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
        self._gdb_text = ""
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
        self._loose = False
        """The last frame stood at the beginning of its line."""

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
        bare = formats.bare_backtrace(line) if "#" in line[:12] else None
        if bare is not None:
            self._start_thread(bare)
            return self._in_thread(line)
        if formats.bare_fault_frame(line):
            self._start_thread(Head(tool="fault handler"))
            return self._in_thread(line)
        return self._between(line)

    def close(self) -> None:
        """The text is at its end."""
        self._flush_gdb()
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
        self._flush_gdb()
        if head.same_thread and self._head is not None and self._head.tool == head.tool:
            return
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
        if head.tool == "gdb":
            return self._in_gdb(line)
        frame = formats.frame(line, head.tool)
        if frame is not None:
            if len(self._frames) < FRAMES_CAP:
                self._frames.append(frame)
            return True
        if line.strip() and (line[0] in " \t" or _SKIPPED.match(line)):
            return True  # locals, source text, gaps
        self._end_thread()
        return not line.strip()

    def _in_gdb(self, line: str) -> bool:
        """A debugger wraps long frames: an indented line belongs to the frame before it."""
        text = line.lstrip()
        if text.startswith("#") and text[1:2].isdigit():
            self._flush_gdb()
            self._gdb_text = line
            return True
        if text.startswith('File "'):
            self._flush_gdb()
            self._gdb_text = line
            self._flush_gdb()
            return True
        if line[:1] in (" ", "\t") and text:
            if self._gdb_text and len(self._gdb_text) < _LINE_CAP:
                self._gdb_text += " " + text
            return True
        self._flush_gdb()
        if _SKIPPED.match(line) and text:
            if self._frames and _NEXT_THREAD.match(line):
                self._start_thread(Head(tool="gdb"))
            return True
        self._end_thread()
        return not text

    def _flush_gdb(self) -> None:
        if self._gdb_text and self._head is not None:
            frame = formats.frame(self._gdb_text[:_LINE_CAP], "gdb")
            if frame is not None and len(self._frames) < FRAMES_CAP:
                self._frames.append(frame)
        self._gdb_text = ""

    def _end_thread(self) -> None:
        head, frames = self._head, self._frames
        self._head, self._frames = None, []
        if head is None or len(self._threads) >= THREADS_CAP:
            return
        if head.outermost_first:
            frames = frames[::-1]
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
        self._flush_gdb()
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
        parts = tracebacks.notebook_frame(line) if frame is None else None
        if parts is not None:
            frame = formats.a_frame(*parts)
        if frame is not None:
            frames.append(frame)
            self._loose = line[:1] == "F"
            return
        if self._loose and frames and frames[-1].source is None and line.strip():
            line = f"    {line.strip()}"  # pasted without its indentation
        if not line.strip() or line[0] in " \t" or line[:2] in _MARKS or _SKIPPED.match(line):
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
