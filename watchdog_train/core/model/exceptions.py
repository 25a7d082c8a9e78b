"""An exception that was raised in the training, and who ended a process."""

import re
from typing import Literal

from watchdog_train.core.model.words import Value

Sender = Literal["wtrain", "member", "oom-killer", "outside", "unknown"]
"""Who sent the signal that ended a process; member: another process of the training."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/~][\w.@+=-]*){2,}")


class CodePlace(Value, frozen=True, kw_only=True):
    """A line of Python code."""

    file: str
    line: int
    function: str
    own: bool = False
    """Of the user's own code: neither Python's nor an installed library's."""
    source: str = ""


class ExceptionCause(Value, frozen=True, kw_only=True):
    """An exception that led to another one, or that carried it."""

    type: str
    message: str


class ExceptionFact(Value, frozen=True, kw_only=True):
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
    """The last ones, innermost last, as Python prints them."""
    source: Literal["hook", "elastic", "output"]
    """The process itself, the error file of torch elastic, or the last traceback of its output."""
    pid: int | None = None
    rank: int | None = None
    worker: int | None = None
    """Of the DataLoader worker in which it was raised."""
    thread: str = ""
    """The thread in which it was raised, where that is not the main thread."""
    at: float | None = None
    """Unix seconds, as the process itself told."""

    @property
    def place(self) -> CodePlace | None:
        """The line to name: the user's own where there is one."""
        return self.own or self.raised

    @property
    def key(self) -> tuple[str, ...]:
        """The same for the same failure in two attempts: no numbers or paths of the message."""
        place = self.place
        where = f"{place.file}:{place.line} {place.function}" if place else ""
        return self.type, _NUMBER.sub("#", _PATH.sub("PATH", self.message)), where
