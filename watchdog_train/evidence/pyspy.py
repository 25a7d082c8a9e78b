"""Python stacks by py-spy: finding it, asking it, reading what it says. Never with --subprocesses.

(With --subprocesses its JSON silently holds the root alone.)
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import sysconfig
from contextlib import suppress

import msgspec

from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.stacks import (
    FRAMES_CAP,
    THREADS_CAP,
    Frame,
    ThreadStack,
    is_library,
    printable,
)
from watchdog_train.evidence import locks
from watchdog_train.evidence.dumps import with_main
from watchdog_train.evidence.jobs import Finished
from watchdog_train.evidence.redact import redact_text
from watchdog_train.system import proc

NAME = "py-spy"
HINT_PTRACE = (
    "ptrace is refused (container without SYS_PTRACE, or kernel.yama.ptrace_scope): start the "
    "container with --cap-add=SYS_PTRACE, or run wtrain as the training's user with "
    "ptrace_scope 0"
)
HINT_MISSING = "py-spy is not installed for wtrain's Python: pip install py-spy"
_GONE = "the process was gone"
_REASONS = (
    ("permission denied", HINT_PTRACE),
    ("operation not permitted", HINT_PTRACE),
    ("eperm", HINT_PTRACE),
    ("no such process", _GONE),
    ("esrch", _GONE),
    ("failed to find python version", "not a Python process, or one that is just starting"),
    ("failed to get process executable", _GONE),
)


_PATH_CAP = 400
_PATH = re.compile(r'"([^"\\\n]*/[^"\\\n]+|[^"\\\s/]+\.\w{1,12})"')
"""A text with a slash or an extension, as py-spy shows it when it has not cut it short."""
_PATH_OBJECT = re.compile(r"<(?:Posix)?Path at ")
"""Of an object py-spy shows the address alone."""


class _Variable(msgspec.Struct):
    name: str = ""
    repr: str | None = None
    addr: int = 0

    def path(self, pid: int) -> str | None:
        """Its value, if that is a path: as text, or an object of pathlib."""
        shown = self.repr or ""
        if _PATH_OBJECT.match(shown):
            return proc.path_text(pid, self.addr)
        match = _PATH.fullmatch(shown)
        return match[1] if match else None


class _Frame(msgspec.Struct):
    name: str = "?"
    filename: str = "?"
    module: str | None = None
    """Of native code."""
    line: int = 0
    locals: list[_Variable] | None = None
    """With `--locals`."""

    def plain(self) -> Frame:
        return Frame(
            function=printable(self.name),
            file=printable(self.filename),
            line=self.line if 0 <= self.line < 1 << 31 else 0,
            native=self.module is not None,
        )


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    pid: int | None = None
    thread_id: int | None = None
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool | None = None
    owns_gil: bool = False

    def plain(self, pid: int | None) -> ThreadStack:
        frames = self.frames
        if len(frames) > FRAMES_CAP:  # the ends of a runaway recursion explain it
            frames = [*frames[: FRAMES_CAP // 2], *frames[-FRAMES_CAP // 2 :]]
        os_id, handle = self.os_thread_id, self.thread_id
        if os_id is None and pid is not None and handle is not None:
            os_id = proc.thread_at(pid, handle)  # Python 3.10 does not know it, read without a stop
        return ThreadStack(
            frames=tuple(frame.plain() for frame in frames),
            name=printable(self.thread_name) if self.thread_name is not None else None,
            os_id=os_id,
            active=self.active,
            owns_gil=self.owns_gil,
        )


def find() -> str | None:
    """The py-spy program: next to the interpreter, in its scripts folder, on PATH, or elsewhere."""
    name = f"{NAME}.exe" if os.name == "nt" else NAME
    for folder in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        path = os.path.join(folder or "", name)
        if folder and os.access(path, os.X_OK):
            return path
    return shutil.which(name) or _from_distribution(name)


def _from_distribution(name: str) -> str | None:
    """Where `pip install --user` or `--target` put it."""
    from importlib.metadata import PackageNotFoundError, files

    with suppress(PackageNotFoundError):
        for file in files(NAME) or ():
            path = str(file.locate())
            if file.name == name and os.access(path, os.X_OK):
                return path
    return None


def command(
    binary: str, pid: int, *, nonblocking: bool, native: bool = False, variables: bool = False
) -> tuple[str, ...]:
    """The argv for one process; --native excludes --nonblocking."""
    argv = [binary, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    if native:
        argv.append("--native")
    elif nonblocking:
        argv.append("--nonblocking")
    if variables:
        argv.append("--locals")
    return tuple(argv)


def reason(finished: Finished) -> str:
    """Why there are no stacks, as a sentence with a remedy."""
    if finished.problem is not None:
        return f"py-spy {finished.problem}"
    text = f"{finished.stderr}\n{finished.stdout}".lower()
    for sign, words in _REASONS:
        if sign in text:
            return words
    lines = [line.strip() for line in finished.stderr.splitlines() if line.strip()]
    return f"py-spy failed: {lines[0][:200]}" if lines else f"py-spy ended with {finished.code}"


def may_succeed_later(finished: Finished) -> bool:
    """Whether the failure may have passed: a stack that changed while it was read, an interpreter
    that was just starting. Not a refusal, not an end, not a timeout, which would cost as much
    again.
    """
    return finished.problem is None and reason(finished) not in (HINT_PTRACE, _GONE)


def parse(text: str, pid: int) -> tuple[ThreadStack, ...] | None:
    """The threads in py-spy's JSON; None when it is something else. Never raises."""
    return _stacks(_decoded(text), pid)


def dumped(text: str) -> tuple[ProcessEvidence, ...]:
    """The processes in py-spy's JSON, pid 0: not known. None for other text. Never raises."""
    threads = _decoded(text) if text.lstrip()[:1] == "[" else []
    pids = sorted({one.pid for one in threads}, key=lambda pid: pid or 0)
    found = ((pid, _stacks(threads, pid)) for pid in pids)
    return tuple(
        ProcessEvidence(pid=pid or 0, start=0, ppid=0, role="rank", threads=stacks, how="py-spy")
        for pid, stacks in found
        if stacks
    )


def path_variable(text: str, pid: int, tid: int) -> tuple[str, str] | None:
    """Name and value of the one path variable in the innermost own frame of a thread.

    None without one, or with several, which cannot be told apart.
    """
    frames = _frames_of(text, pid, tid)
    own = (f for f in frames if not is_library(Frame(function="", file=f.filename, line=0)))
    held = next(own, _Frame()).locals or ()
    found = [(one.name, path) for one in held if (path := one.path(pid))]
    if len(found) != 1:
        return None
    return printable(found[0][0]), redact_text(printable(found[0][1], _PATH_CAP))


def standing(text: str, pid: int, tid: int) -> str:
    """A digest, equal only for the same Python frames and local variables; empty without frames.

    Objects count by their address and what py-spy shows of them. No text of them leaves.
    """
    frames = (frame for frame in _frames_of(text, pid, tid) if frame.module is None)
    whole = [(frame.name, frame.filename, frame.line, frame.locals) for frame in frames]
    return hashlib.blake2b(msgspec.json.encode(whole), digest_size=8).hexdigest() if whole else ""


def lock_variable(text: str, pid: int, tid: int) -> str | None:
    """The path of the lock that a library of file locks polls, by a variable of its function."""
    frames = _frames_of(text, pid, tid)
    held = (one for frame in frames if locks.asks(frame.plain()) for one in frame.locals or ())
    found = (locks.named(one.name, one.repr) or one.path(pid) for one in held)
    return next(filter(None, found), None)


def _frames_of(text: str, pid: int, tid: int) -> list[_Frame]:
    threads = (one for one in _decoded(text) if (one.os_thread_id or pid) == tid)
    return next((one.frames for one in threads), [])


def _decoded(text: str) -> list[_Thread]:
    try:
        return msgspec.json.decode(text, type=list[_Thread])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return []


def _stacks(threads: list[_Thread], pid: int | None) -> tuple[ThreadStack, ...] | None:
    found = [one.plain(pid) for one in threads[:THREADS_CAP] if one.pid in (None, pid)]
    return with_main(found, pid) or None
