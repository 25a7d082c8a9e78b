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
    """A line of Python code."""

    file: str
    line: int
    function: str
    own: bool = False
    """Of the user's own code: neither Python's nor an installed library's."""
    source: str = ""


class ExceptionCause(Value):
    """An exception that led to another one, or that carried it."""

    type: str
    message: str


class ExceptionFact(Value):
    """What was raised and where; wrappers of launchers and of worker processes are taken off."""

    type: str
    """As Python prints it: `torch.OutOfMemoryError`."""
    message: str = ""
    """Secrets removed, one line, capped."""
    raised: CodePlace | None = None
    """Where it was raised."""
    own: CodePlace | None = None
    """The innermost frame of the user's own code."""
    chain: tuple[ExceptionCause, ...] = ()
    """What led to it, the first cause first."""
    frames: tuple[CodePlace, ...] = ()
    """The outermost one and the last ones, innermost last, as Python prints them."""
    source: Literal["hook", "elastic", "output"]
    """The process itself, the error file of torch elastic, or the last traceback of its output."""
    pid: int | None = None
    rank: int | None = None
    worker: int | None = None
    """Of the DataLoader worker in which it was raised."""
    thread: str = ""
    """The thread in which it was raised, where that is not the main thread."""
    at: float | None = None
    """Unix seconds, as the process itself told; of one in the output, when it was written."""
    quoted: str = ""
    """What its message quotes of another program, from the first traceback in it on."""
    saving: str = ""
    """Where the save wrote to that it has ended."""
    stays: bool = False
    """Its process lives: it waits in an exit handler, or where it cleans up."""

    @property
    def text(self) -> str:
        """Type and message, as Python prints them."""
        return f"{self.type}: {self.message}"

    @property
    def place(self) -> CodePlace | None:
        """The line to name: the user's own where there is one."""
        return self.own or self.raised

    @property
    def key(self) -> tuple[str, ...]:
        """The same for the same failure in two attempts: no numbers or paths of the message."""
        place = self.place
        where = f"{place.file}:{place.line} {place.function}" if place else ""
        return self.type, _without_details(self.message), where


Shown = Literal["traceback", "cut", "line", "fatal", "signal"]
"""cut: the text ends inside the traceback; line: without one; fatal: the interpreter crashed."""


class Failure(Value):
    """An exception or another end that a text tells of."""

    fact: ExceptionFact
    """Of a signal: without a type, and with the line that names it as the message."""
    shown: Shown
    signal: int | None = None
    line: int = 0
    """Of the text, from 0."""
    printer: str = ""
    """The prefix of its lines, where that names no rank."""
    at: float | None = None
    """Seconds on the clock of that line."""


class FullDisk(Value):
    """Why a save could not be written."""

    path: str
    """Of the save, or of the folder of the last one."""
    lacks: Literal["bytes", "inodes", "quota"]
    free_bytes: int | None = None
    need_bytes: int | None = None
    """Of the save before."""


class CrashFact(Value):
    """What ended an attempt: of several processes the one that ended badly first."""

    exception: ExceptionFact | None = None
    code: int | None = None
    signal: int | None = None
    sender: Sender | None = None
    """Who sent the signal; None: no signal, or one that a process raises by a crash of its own."""
    rank: int | None = None
    pid: int | None = None
    step: int | None = None
    said: str = ""
    """The last line of its error output, where no exception is known."""
    gpu_shared: bool = False
    """Another process held memory of its GPUs."""
    first: ExceptionFact | None = None
    """Of another process, raised shortly before; `exception` is its consequence."""
    vanished: RankEnd | None = None
    """The helper process that ended badly shortly before; with `first`, the one that raised it."""
    disk: FullDisk | None = None
    stays: bool = False
    """The process lived on: its exception is why the others waited for it."""
    network_path: bool = False
    """The file that the exception names is on a network file system."""

    @property
    def in_thread(self) -> bool:
        """Whether it ended a thread alone, for which the process then waited."""
        return self.stays and self.exception is not None and bool(self.exception.thread)

    @property
    def key(self) -> tuple[str, ...]:
        """The same for the same failure in two attempts."""
        if self.exception is not None:
            return self.exception.key
        if self.signal is not None:
            return "signal", str(self.signal)
        return "exit", str(self.code), _without_details(self.said)


def _without_details(text: str) -> str:
    return _NUMBER.sub("#", _PATH.sub("PATH", text))
