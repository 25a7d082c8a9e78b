"""What is told of one remedy, and where it can be applied. Types only."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from watchdog_train.core.model import RemedyKind
from watchdog_train.core.recovery.remedy_spec import RemedySpec

Platform = Literal["linux", "darwin", "win32"]
EVERYWHERE: tuple[Platform, ...] = get_args(Platform)
KINDS: tuple[RemedyKind, ...] = get_args(RemedyKind)

Framework = Literal["plain", "trainer", "lightning", "accelerate"]
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
"""plain: a loop over torch; trainer: the Trainer of transformers and what derives from it."""

Cell = Literal["hook", "environment", "argument", "suggestion", "none"]
"""How a remedy reaches a training that is not changed: a hook inside the process, a variable, an
argument of the command; `suggestion`: only the line for the script; `none`: nothing to change."""
APPLIED: tuple[Cell, ...] = ("hook", "environment", "argument")


class Remedy(RemedySpec, frozen=True, kw_only=True):
    """One safer setting with all a person wants to know before using it."""

    precondition: str = ""
    """When it may be applied, and who checks that; "" when it always may."""
    changes: str
    """What it changes for the result of the training."""
    may_break: str
    script_line: str = ""
    """The line that makes it permanent in the script, "" when there is nothing to keep."""
    script_lines: dict[str, str] = msgspec.field(default_factory=dict)
    """By framework ("trainer" for the Trainer of transformers), where it has a line of its own."""
    platforms: tuple[Platform, ...] = EVERYWHERE
    cells: dict[Framework, Cell]
    """The row of the applicability matrix."""


def cells(everywhere: Cell, **others: Cell) -> dict[Framework, Cell]:
    """The row of a remedy: the same for every framework but the named ones."""
    row: dict[Framework, Cell] = dict.fromkeys(FRAMEWORKS, everywhere)
    for framework in FRAMEWORKS:
        row[framework] = others.get(framework, everywhere)
    return row


def in_process(name: str, **parameters: Any) -> dict[str, Any]:
    """An entry for the client: what it does is decided there, by the id."""
    return {"id": name, **parameters}


def variables(name: str, **env: str) -> dict[str, Any]:
    """The fields of a remedy that only sets variables; the client says whether they arrived."""
    return {"env": env, "in_process": in_process(name, env=env)}
