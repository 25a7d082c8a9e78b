"""An exception that was raised in the training, and who ended a process."""

import re
from typing import Literal

from watchdog_train.core.model.processes import RankEnd
from watchdog_train.core.model.words import Value

Sender = Literal["wtrain", "member", "oom-killer", "outside", "unknown"]
"""Who sent the signal that ended a process; member: another process of the training."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/~][\w.@+=-]*){2,}")


class CodePlace(Value):
    file: str
    line: int
    function: str
    own: bool = False
    """The user's own code: neither Python's nor an installed library's."""
    source: str = ""


class ExceptionCause(Value):
    """An exception that caused or carried another one."""

    type: str
    message: str


class ExceptionFact(Value):
    """What was raised and where, without the wrappers of launchers and worker processes."""

    type: str
    """As Python prints it: `torch.OutOfMemoryError`."""
    message: str = ""
    """Secrets removed, one line, capped."""
    raised: CodePlace | None = None
    own: CodePlace | None = None
    """The innermost frame of the user's own code."""
    chain: tuple[ExceptionCause, ...] = ()
    """Its causes, the first cause first."""
    frames: tuple[CodePlace, ...] = ()
    """The outermost one and the last ones, innermost last, as Python prints them."""
    source: Literal["hook", "elastic", "output"]
    """The process itself, the error file of torch elastic, or the last traceback of its output."""
    pid: int | None = None
    rank: int | None = None
    worker: int | None = None
    """The DataLoader worker in which it was raised."""
    thread: str = ""
    """The thread in which it was raised, if not the main thread."""
    at: float | None = None
    """Unix seconds, from the process itself; of one in the output, when it was written."""
    quoted: str = ""
    """The part of its message quoted from another program, from the first traceback on."""
    saving: str = ""
    """Target of the save that it ended."""
    stays: bool = False
    """Its process lives: it waits in an exit handler, or during cleanup."""

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}"

    @property
    def place(self) -> CodePlace | None:
        """The line to show: the user's own if there is one."""
        return self.own or self.raised

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for the same failure in two attempts: without the message's numbers and paths."""
        place = self.place
        where = f"{place.file}:{place.line} {place.function}" if place else ""
        return self.type, _without_details(self.message), where


Shown = Literal["traceback", "cut", "line", "fatal", "signal"]
"""cut: the text ends inside the traceback; line: without one; fatal: the interpreter crashed."""


class Failure(Value):
    """An exception or another end found in a text."""

    fact: ExceptionFact
    """Of a signal: without a type, and with the line that names it as the message."""
    shown: Shown
    signal: int | None = None
    line: int = 0
    """Of the text, from 0."""
    printer: str = ""
    """The prefix of its lines, if that names no rank."""
    at: float | None = None
    """Seconds on the clock of that line."""


class FullDisk(Value):
    path: str
    """Of the save, or of the folder of the last one."""
    lacks: Literal["bytes", "inodes", "quota"]
    free_bytes: int | None = None
    need_bytes: int | None = None
    """Of the save before."""


class CrashFact(Value):
    """What ended an attempt: of several processes the one that failed first."""

    exception: ExceptionFact | None = None
    code: int | None = None
    signal: int | None = None
    sender: Sender | None = None
    """Who sent the signal; None: no signal, or one raised by a crash of the process."""
    rank: int | None = None
    pid: int | None = None
    step: int | None = None
    said: str = ""
    """The last line of its error output, if no exception is known."""
    gpu_shared: bool = False
    """Another process held memory of its GPUs."""
    first: ExceptionFact | None = None
    """Of another process, raised shortly before; it caused `exception`."""
    vanished: RankEnd | None = None
    """The helper process that failed shortly before; with `first`, the one that raised it."""
    disk: FullDisk | None = None
    stays: bool = False
    """The process lived on; the others waited for it because of its exception."""
    network_path: bool = False
    """The file that the exception names is on a network file system."""

    @property
    def in_thread(self) -> bool:
        """Whether it ended only a thread, for which the process then waited."""
        return self.stays and self.exception is not None and bool(self.exception.thread)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for the same failure in two attempts."""
        if self.exception is not None:
            return self.exception.key
        if self.signal is not None:
            return "signal", str(self.signal)
        return "exit", str(self.code), _without_details(self.said)


def _without_details(text: str) -> str:
    return _NUMBER.sub("#", _PATH.sub("PATH", text))
