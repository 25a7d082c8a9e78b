"""Recognises one line of a dump: which tool wrote it, and what it says. Pure, linear, total.

Formats: py-spy, faulthandler, Python tracebacks, and the stacks of our own bundles.
"""

from __future__ import annotations

import re
from typing import Literal

from watchdog_train.core.diagnosis.stacks import Frame, printable
from watchdog_train.core.model import Value

Tool = Literal["py-spy", "fault handler", "traceback", "wtrain"]

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


class ProcessHead(Value):
    """A line that says which process the following stacks belong to."""

    pid: int | None
    command: str | None = None
    state: str | None = None
    cpu_share: float | None = None


_PYSPY_PROCESS = re.compile(r"\s*Process (?P<pid>\d{1,10}): ?(?P<command>.*)")
_OUR_PROCESS = re.compile(r"(?P<label>[\w :.-]{1,80}) \(pid (?P<pid>\d{1,10})\): (?P<facts>.*)")
_OUR_STATE = re.compile(r"\bstate (?P<state>[A-Za-z])\b")
_OUR_CPU = re.compile(r"\bCPU (?P<cpu>\d{1,6})%")
_PYSPY_THREAD = re.compile(
    r"\s*Thread (?:(?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,12})(?:/0x[0-9A-Fa-f]{1,16})? ?)?"
    r"(?:\(?(?P<bare>[A-Z][\w -]{0,60})\)? )?"
    r"\((?P<status>active|idle|running|sleeping)(?P<gil>\+gil)?(?:\+gc)?\)"
    r"(?::? ?\"?(?P<name>[^\"\n]{0,200})\"?)?"
)
_FAULT_THREAD = re.compile(
    r"\s*(?:Current thread|Thread) (?P<id>0x[0-9a-fA-F]{1,16}|\d{1,20})"
    r"(?: \[(?P<name>[^\]\n]{0,100})\])?(?: \((?!most)[^)]{0,60}\))? ?\(most recent call first\):?"
)
_OUR_THREAD = re.compile(
    r"thread (?P<name>.{1,200}?) (?P<id>\d{0,12}) ?(?P<notes>(?:main|holds|helper).*)?\Z"
)


def process_head(line: str) -> ProcessHead | None:
    """The process that stacks after this line belong to, when the line names one."""
    match = _PYSPY_PROCESS.match(line)
    if match:
        return ProcessHead(pid=int(match["pid"]), command=printable(match["command"].strip(), 1000))
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


_FAULT_FRAME = re.compile(r"\s*File \"[^\"\n]{1,1000}\", line \d{1,7} in [\w<>.]{1,200}\s*\Z")


def bare_fault_frame(line: str) -> bool:
    """Whether it is a frame of the fault handler (no comma before `in`), wherever it stands."""
    return 'File "' in line and _FAULT_FRAME.match(line) is not None


def thread_head(line: str) -> Head | None:
    """The beginning of a thread's stack, in any of the formats."""
    if "hread" not in line:
        return None
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
    r"\s*File \"(?P<file>[^\"\n]{0,1000})\", line (?P<line>\d{1,9}|\?\?\?)"
    r"(?:,? in (?P<name>[^\n]*))?"
)
_CPP_ARGUMENTS = re.compile(r"\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?\Z")


def frame(line: str, tool: Tool) -> Frame | None:
    """A frame of a stack of that tool; None for anything else (locals, source text, gaps)."""
    return _plain(line) if tool in ("py-spy", "wtrain") else _in_file(line)


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


def a_frame(name: str, file: str, line: str | None) -> Frame:
    """A frame of those parts; arguments of native functions come off."""
    file, name = file.strip(), name.strip()
    native = is_native_file(file)
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
