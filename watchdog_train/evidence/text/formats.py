"""Recognises one line of a dump: which tool wrote it, and what it says. Pure, linear, total.

Formats: py-spy, pystack, faulthandler, gdb (with py-bt), lldb, macOS `sample`, Python tracebacks,
kernel stacks, stacks of C++ programs that were ended, and the stacks of our own bundles.
"""

from __future__ import annotations

import re
from typing import Literal

from watchdog_train.core.diagnosis.stacks import Frame, printable
from watchdog_train.core.model import Value

Tool = Literal[
    "py-spy", "pystack", "fault handler", "gdb", "lldb", "sample", "C++", "traceback", "wtrain"
]

_PYTHON_FILE = re.compile(r"(?:\.py[iw]?|>|\.ipynb)\Z")
_SOURCE_FILE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|h|hpp|rs|pyx|S)\Z")


class Head(Value):
    """The first line of a thread's stack."""

    tool: Tool
    os_id: int | None = None
    name: str | None = None
    active: bool | None = None
    owns_gil: bool = False
    main: bool = False
    outermost_first: bool = False
    same_thread: bool = False
    """The Python frames of the native stack before it, if there is one."""


class ProcessHead(Value):
    """A line that says which process the following stacks belong to."""

    pid: int | None
    command: str | None = None
    state: str | None = None
    cpu_share: float | None = None


_PYSPY_PROCESS = re.compile(r"\s*Process (?P<pid>\d{1,10}): ?(?P<command>.*)")
_DEBUGGER_PROCESS = re.compile(
    r"\s*(?:\(gdb\) )?(?:Attaching to (?:program: .{0,300}, )?process (?P<gdb>\d{1,10})|"
    r"Process (?P<lldb>\d{1,10}) stopped|"
    r"(?:[$#%>] )?(?:sudo )?(?:gdb|gstack|pstack|eu-stack) .{0,60}?\b(?P<asked>\d{1,10})\b|"
    r"Analysis of sampling .{1,120} \(pid (?P<sample>\d{1,10})\))"
)
_OUR_PROCESS = re.compile(r"(?P<label>[\w :.-]{1,80}) \(pid (?P<pid>\d{1,10})\): (?P<facts>.*)")
_OUR_STATE = re.compile(r"\bstate (?P<state>[A-Za-z])\b")
_OUR_CPU = re.compile(r"\bCPU (?P<cpu>\d{1,6})%")
_PYSPY_THREAD = re.compile(
    r"\s*Thread (?:(?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,12})(?:/0x[0-9A-Fa-f]{1,16})? ?)?"
    r"(?:\(?(?P<bare>[A-Z][\w -]{0,60})\)? )?"
    r"\((?P<status>active|idle|running|sleeping)(?P<gil>\+gil)?(?:\+gc)?\)"
    r"(?::? ?\"?(?P<name>[^\"\n]{0,200})\"?)?"
)
_PYSTACK_THREAD = re.compile(
    r"\s*Traceback for thread (?P<id>\d{1,10})(?: \([^)\n]{0,100}\))?"
    r"(?P<notes>(?: \[[^\]\n]{1,60}\]){0,4}) \(most recent call last\):"
)
_FAULT_THREAD = re.compile(
    r"\s*(?:Current thread|Thread) (?P<id>0x[0-9a-fA-F]{1,16}|\d{1,20})"
    r"(?: \[(?P<name>[^\]\n]{0,100})\])?(?: \((?!most)[^)]{0,60}\))? ?\(most recent call first\):?"
)
_GDB_THREAD = re.compile(
    r"\s*\*?\s*Thread (?P<number>\d{1,6}) \((?:Thread 0x[0-9a-f]{1,16} ?)?"
    r"\(?(?:LWP|process|id) ?(?P<id>\d{1,10})\)?(?: ?\"(?P<name>[^\"]{0,100})\")?.{0,80}\):?\s*\Z"
)
_PY_BT = re.compile(r"\s*Traceback \(most recent call first\):")
_LLDB_THREAD = re.compile(
    r"\s*\*?\s*thread #(?P<number>\d{1,6})(?:, tid = 0x[0-9a-f]+)?"
    r"(?:, (?:name|queue) = '(?P<name>[^']{0,100})')?.{0,200}"
)
_SAMPLE_THREAD = re.compile(
    r"\s{2,}\d{1,8} Thread_\w{1,16}(?:: |\s{1,8})?(?P<name>[^\n]{0,120}?)(?:\s+\(serial\))?\s*\Z"
)
_CPP_THREAD = re.compile(
    r"\s*(?:(?P<last>C\+\+ Traceback \(most recent call last\):)|"
    r"\*{3} (?:SIG[A-Z]+|Check failure stack trace).*)\s*\Z"
)
"""Paddle's, and that of glog and abseil, which TensorFlow, JAX and Ray print."""
_OUR_THREAD = re.compile(
    r"thread (?P<name>.{1,200}?) (?P<id>\d{0,12}) ?(?P<notes>(?:main|holds|helper).*)?\Z"
)


def process_head(line: str) -> ProcessHead | None:
    """The process that stacks after this line belong to, when the line names one."""
    match = _PYSPY_PROCESS.match(line)
    if match:
        return ProcessHead(pid=int(match["pid"]), command=printable(match["command"].strip(), 1000))
    match = _DEBUGGER_PROCESS.match(line)
    if match:
        return ProcessHead(pid=int(next(filter(None, match.groups()))))
    if " (pid " in line[:100] and not line.startswith(" "):
        match = _OUR_PROCESS.match(line)
        facts = match["facts"] if match else ""
        state, cpu = _OUR_STATE.search(facts), _OUR_CPU.search(facts)
        if match and (state or cpu or facts.startswith("in ")):
            return ProcessHead(
                pid=int(match["pid"]),
                state=state["state"] if state else None,
                cpu_share=int(cpu["cpu"]) / 100 if cpu else None,
            )
    return None


_BARE_GDB = re.compile(
    r"\s*#(?:[0-2]\s\s+(?:0x[0-9a-fA-F]+ in )?\S.* \(|\d{1,3} Frame 0x[0-9a-f]+, for file )"
)


def bare_backtrace(line: str) -> Head | None:
    """The first frame of a `bt` that was pasted without its thread."""
    return Head(tool="gdb") if _BARE_GDB.match(line) else None


_FAULT_FRAME = re.compile(r"\s*File \"[^\"\n]{1,1000}\", line \d{1,7} in [\w<>.]{1,200}\s*\Z")


def bare_fault_frame(line: str) -> bool:
    """Whether it is a frame of the fault handler (no comma before `in`), wherever it stands."""
    return 'File "' in line and _FAULT_FRAME.match(line) is not None


def thread_head(line: str) -> Head | None:
    """The beginning of a thread's stack, in any of the formats."""
    if any(mark in line[:40] for mark in ("C++ Traceback", "***")):
        match = _CPP_THREAD.match(line)
        if match:
            return Head(tool="C++", main=True, outermost_first=match["last"] is not None)
    if "hread" not in line and "Traceback (most recent call first)" not in line:
        return None
    match = _PYSTACK_THREAD.match(line)
    if match:
        return Head(
            tool="pystack",
            os_id=int(match["id"]),
            owns_gil="[Has the GIL]" in match["notes"],
            outermost_first=True,
        )
    match = _FAULT_THREAD.match(line)
    if match:
        return Head(tool="fault handler", name=_name(match["name"]))
    match = _PYSPY_THREAD.match(line)
    if match:
        name = _name((match["name"] or "").strip().strip('"') or match["bare"])
        return Head(
            tool="py-spy",
            os_id=_number(match["id"]),
            name=name,
            active=match["status"] in ("active", "running"),
            owns_gil=bool(match["gil"]),
        )
    match = _GDB_THREAD.match(line)
    if match:
        main = match["number"] == "1"
        return Head(tool="gdb", os_id=int(match["id"]), name=_name(match["name"]), main=main)
    if _PY_BT.match(line):
        return Head(tool="gdb", same_thread=True)
    match = _SAMPLE_THREAD.match(line)
    if match:
        name = _name(match["name"].strip())
        main = name is not None and ("main-thread" in name or name.startswith("Main Thread"))
        return Head(tool="sample", name=name, main=main, outermost_first=True)
    match = _LLDB_THREAD.match(line)
    if match:
        return Head(tool="lldb", name=_name(match["name"]), main=match["number"] == "1")
    match = _OUR_THREAD.match(line)
    if match:
        notes = match["notes"] or ""
        name = None if match["name"] == "?" else _name(match["name"])
        return Head(
            tool="wtrain",
            os_id=_number(match["id"] or None),
            name=name,
            main=notes.startswith("main"),
            owns_gil="holds the interpreter lock" in notes,
        )
    return None


_FRAME_PLAIN = re.compile(
    r"(?P<indent>\s*)(?P<name>\S.*) \((?P<file>[^()\n]{1,1000}?)(?::(?P<line>\d{1,7}))?\)"
    r"(?:\s+\|.*)?\s*\Z"
)
_FRAME_FILE = re.compile(
    r"\s*(?:#\d{1,5} )?(?:\((?:Python|C)\) )?File \"(?P<file>[^\"\n]{0,1000})\", "
    r"line (?P<line>\d{1,9}|\?\?\?)"
    r"(?:,? in (?P<name>[^\n]*))?"
)
_FRAME_PYSTACK = re.compile(
    r"\s*\((?P<kind>Python|C)\) File \"(?P<file>[^\"\n]{0,1000})\", line (?P<line>\d{1,9}), "
    r"in (?P<name>\S.*?)(?: \((?P<library>[^()\n]{1,1000})\))?\s*\Z"
)
_FRAME_GDB = re.compile(r"\s*#\d{1,5}\s+(?:0x[0-9a-fA-F]+ in )?(?P<rest>\S.*)")
_GDB_PLACE = re.compile(
    r" (?:at (?P<file>[^\s:]+)(?::(?P<line>\d{1,7}))?|from (?P<library>\S+))\s*\Z"
)
_FRAME_GDB_PYTHON = re.compile(
    r"Frame 0x[0-9a-f]+, for file (?P<file>[^\n,]{1,500}), line (?P<line>\d{1,7}), "
    r"in (?P<name>[\w<>.]{1,200})"
)
_FRAME_LLDB = re.compile(
    r"\s*\*?\s*frame #\d{1,5}: (?:0x[0-9a-f]+ )?(?P<library>[^`\s]{1,200})`(?P<name>.*?)"
    r"(?: \+ \d+)?(?: at (?P<file>\S+?):(?P<line>\d{1,7})(?::\d+)?)?(?: \[[^\]]*\])?\s*\Z"
)
_FRAME_SAMPLE = re.compile(
    r"[\s+!:|]*\d{1,8} (?P<name>\S.*?)\s+\(in (?P<library>[^)]{1,200})\).*\Z"
)
_FRAME_CPP = re.compile(
    r"\s*(?:(?:PC: )?@\s+0x[0-9a-f]+\s+(?:\d+\s+)?(?:\(unknown\)\s+)?|\d{1,3}\s{2,4})"
    r"(?P<name>[A-Za-z_~].*?)\s*\Z"
)
_CPP_ARGUMENTS = re.compile(r"\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?\Z")


def frame(line: str, tool: Tool) -> Frame | None:
    """A frame of a stack of that tool; None for anything else (locals, source text, gaps)."""
    match tool:
        case "py-spy" | "wtrain":
            return _plain(line)
        case "pystack":
            match = _FRAME_PYSTACK.match(line)
            if match is None:
                return None
            file = match["file"] if match["file"] != "???" else match["library"] or "?"
            return a_frame(match["name"], file, match["line"], native=match["kind"] == "C")
        case "fault handler" | "traceback":
            return _in_file(line)
        case "gdb":
            return _gdb(line)
        case "lldb":
            return _native(_FRAME_LLDB.match(line))
        case "sample":
            return _native(_FRAME_SAMPLE.match(line))
        case "C++":
            match = _FRAME_CPP.match(line)
            return a_frame(match["name"], "?", None, native=True) if match else None


def _plain(line: str) -> Frame | None:
    match = _FRAME_PLAIN.match(line)
    if match is None or match["name"].endswith(":") or not (match["indent"] or match["line"]):
        return None
    return a_frame(match["name"], match["file"], match["line"])


def _in_file(line: str) -> Frame | None:
    match = _FRAME_FILE.match(line)
    if match is None:
        return None
    name = (match["name"] or "<module>").strip().removesuffix(" (native)")
    return a_frame(name or "?", match["file"] or "?", match["line"])


def _gdb(line: str) -> Frame | None:
    python = _FRAME_GDB_PYTHON.search(line[:4000])
    if python:
        return a_frame(python["name"], python["file"], python["line"])
    if 'File "' in line[:40]:
        return _in_file(line)
    match = _FRAME_GDB.match(line)
    if match is None or match["rest"].startswith("<signal handler"):
        return None
    rest, file, number = match["rest"].rstrip(), "?", None
    place = _GDB_PLACE.search(rest, max(0, len(rest) - 600))
    if place:
        rest, file, number = rest[: place.start()], place["file"] or place["library"], place["line"]
    return a_frame(_before_arguments(rest), file, number, native=True)


def _before_arguments(text: str) -> str:
    """`a::f(int) (this=0x1, x=(2))` without its last balanced parentheses; linear."""
    depth = 0
    if not text.endswith(")"):
        return text
    for position in range(len(text) - 1, -1, -1):
        if text[position] == ")":
            depth += 1
        elif text[position] == "(":
            depth -= 1
            if depth == 0:
                return text[:position] or text
    return text.partition(" (")[0]


def _native(match: re.Match[str] | None) -> Frame | None:
    if match is None:
        return None
    groups = match.groupdict()
    file, line = groups.get("file"), groups.get("line")
    python = file is not None and _PYTHON_FILE.search(file) is not None
    return a_frame(groups["name"], file or groups["library"], line, native=not python)


def a_frame(name: str, file: str, line: str | None, *, native: bool | None = None) -> Frame:
    """A frame of those parts; arguments of native functions come off."""
    file = file.strip()
    if native is None:
        native = is_native_file(file)
    name = name.strip()
    if native:
        name = _CPP_ARGUMENTS.sub("", name)
    number = int(line) if line is not None and line.isdigit() else 0
    return Frame(function=printable(name), file=printable(file), line=number, native=native)


def is_native_file(file: str) -> bool:
    """Whether a file belongs to native code: a shared library, C or C++ source."""
    if _PYTHON_FILE.search(file):
        return False
    return bool(_SOURCE_FILE.search(file)) or ".so" in file or ".dylib" in file or ".dll" in file


def _number(text: str | None) -> int | None:
    if not text:
        return None
    return int(text, 16) if text.startswith("0x") else int(text)


def _name(text: str | None) -> str | None:
    return printable(text) if text else None
