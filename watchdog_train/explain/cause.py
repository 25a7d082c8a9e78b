"""A family: one known cause of hangs or crashes, as a function of a suspect. Judges nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from watchdog_train.core.model import DiagnosisKind, Value
from watchdog_train.core.model import explanation as x

if TYPE_CHECKING:
    from watchdog_train.explain.scene import Captured, Scene

OBJECTS = (
    "stopped", "terminal", "file", "file_lock", "disk", "sleep", "batch", "tcp", "pipe",
)  # fmt: skip
"""Waits with a known object: only a family that names the wait may explain such a root."""
SIGNALS = ("SIGBUS", "SIGKILL")
"""Ends with few causes: only a family that names the signal may explain them."""
ANY = "any"
"""In `of`: the family may explain every root."""


class Cause(Value, kw_only=False):
    certainty: x.Certainty
    says: str = ""
    """Instead of the family's sentence; {who}, {frame}, {line}, {others} and {orders} are filled in
    when it is rendered."""
    remedies: tuple[str, ...] | None = None
    """Instead of the family's."""
    kind: DiagnosisKind | None = None
    """Instead of the family's."""
    rank: int | None = None
    """The rank that a cause of the complete job blames, if any."""


proven = partial(Cause, "proven")
"""A cause of which everything was seen."""
likely = partial(Cause, "likely")
"""A cause that fits what was seen and has few rivals."""
possible = partial(Cause, "possible")
"""A cause that fits what was seen, as others may."""


OfProcess = Callable[["Scene", "Captured"], "Cause | None"]
OfJob = Callable[["Scene"], "Cause | None"]
OfMessage = Callable[["Scene", Cause], Cause]


class Family(msgspec.Struct, kw_only=True):
    """One cause, what it may explain, and the functions that recognise it."""

    id: str
    kind: DiagnosisKind
    says: str
    """What is known about such a root; the function's docstring."""
    of: tuple[str, ...] = ()
    """Waits with a known object, and signals, that it may explain; it may explain all other
    roots."""
    remedies: tuple[str, ...] = ()
    link: str | None = None
    """The public thread or source that documents it."""
    symptom: bool = False
    """Other processes print it as well, so its line does not identify the root."""
    victims: bool = False
    """Its function also checks processes that wait for the root."""
    of_process: OfProcess | None = None
    of_job: OfJob | None = None
    of_message: OfMessage | None = None

    def job(self, function: OfJob) -> OfJob:
        """Add a function that recognises it in the complete job: records, signals, the machine."""
        self.of_job = function
        return function

    def message(self, function: OfMessage) -> OfMessage:
        """Add what else is known if an error message has named it."""
        self.of_message = function
        return function


REGISTERED: dict[str, Family] = {}
"""By id, in the order in which they were declared."""


def held_at_fork(
    process: Captured, says: str = "", remedies: tuple[str, ...] | None = None
) -> Cause:
    """Proven if no other thread of the process can wake it, else likely."""
    return (proven if process.is_cut_off else likely)(says, remedies)


def declare(name: str, issue: str = "", **fields: Any) -> Family:
    """Add a family; without a function, error messages alone recognise it.

    Args:
        name: its id.
        issue: the public thread that it is known from, `pytorch/pytorch#75147`.
        fields: those of `Family`.

    Raises:
        ValueError: there is a family of this name.
    """
    if name in REGISTERED:
        raise ValueError(f"two families are called {name}")
    where, _, number = issue.partition("#")
    link = f"https://github.com/{where}/issues/{number}" if issue else None
    REGISTERED[name] = Family(id=name, link=link, **fields)
    return REGISTERED[name]


def family(name: str, issue: str = "", **fields: Any) -> Callable[[OfProcess], Family]:
    """Declare a family by the function that recognises it in one process.

    The function's docstring is what is known about such a root; the rest is that of `declare`.
    """

    def with_function(function: OfProcess) -> Family:
        says = " ".join((inspect.getdoc(function) or "").split())
        return declare(name, issue, says=says, of_process=function, **fields)

    return with_function
