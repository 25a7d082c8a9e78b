"""What is told of one remedy. Types only."""

from __future__ import annotations

from typing import Any, Literal, get_args

from watchdog_train.core.model import RemedyKind
from watchdog_train.core.recovery.remedies import RemedySpec

Platform = Literal["linux", "darwin", "win32"]
EVERYWHERE: tuple[Platform, ...] = get_args(Platform)
KINDS: tuple[RemedyKind, ...] = get_args(RemedyKind)


class Remedy(RemedySpec):
    """One safer setting with all a person wants to know before using it."""

    precondition: str = ""
    """When it may be applied, and who checks that; "" when it always may."""
    changes: str = "nothing"
    """What it changes for the result of the training."""
    may_break: str
    script_line: str = ""
    """The lines that make it permanent in the script, "" when there is nothing to keep."""
    platforms: tuple[Platform, ...] = EVERYWHERE


def in_process(name: str, **parameters: Any) -> dict[str, Any]:
    """An entry for the client: what it does is decided there, by the id."""
    return {"id": name, **parameters}


def variables(name: str, **env: str) -> dict[str, Any]:
    """The fields of a remedy that only sets variables; the client says whether they arrived."""
    return {"env": env, "in_process": in_process(name, env=env)}
