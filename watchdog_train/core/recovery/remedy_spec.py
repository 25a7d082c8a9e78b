"""What the core must know of a remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from watchdog_train.core.model import RemedyKind, Value

_NAME = re.compile(r"[^/\\]*\Z")
_OWN_SWITCHES = ("-m",)


class ArgumentChange(Value, frozen=True, kw_only=True):
    """An argument of a command that one program understands."""

    program: str
    """Of the command: its file's name, or the module after `-m`."""
    subcommand: str
    option: str
    short: str
    value: str

    def fits(self, argv: Sequence[str]) -> bool:
        """Whether the command is this program with this subcommand."""
        position = self._program(argv)
        return position is not None and self.subcommand in argv[position + 1 :]

    def apply(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The command with the option behind the subcommand, in the place of one it has."""
        position = self._program(argv)
        if position is None or not self.fits(argv):
            return tuple(argv)
        after = argv.index(self.subcommand, position + 1) + 1
        kept: list[str] = []
        skip = False
        for word in argv[after:]:
            own = word in (self.short, self.option)
            if not (skip or own or word.startswith((f"{self.option}=", self.short))):
                kept.append(word)
            skip = own
        return (*argv[:after], f"{self.option}={self.value}", *kept)

    def _program(self, argv: Sequence[str]) -> int | None:
        for position, word in enumerate(argv):
            match = _NAME.search(word)
            name = match.group().removesuffix(".exe") if match is not None else ""
            behind_switch = position > 0 and argv[position - 1] in _OWN_SWITCHES
            if name == self.program and (position == 0 or behind_switch or "python" in argv[0]):
                return position
            if position >= 4:
                break
        return None


class RemedySpec(Value, frozen=True, kw_only=True):
    """What the core must know of a remedy; the catalogue adds what a person wants to read."""

    id: str
    kind: RemedyKind
    summary: str
    """What it does, as a clause: `loads data in the main process`."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    in_process: dict[str, Any] | None = None
    """An entry of WTRAIN_SETTINGS for the client, None when the environment does it all."""
    in_part: dict[str, Any] | None = None
    """The entry of a remedy that must be allowed, as far as it needs no permission."""
    argument: ArgumentChange | None = None
    needs_allow: bool = False
    """Never by itself although its kind would be."""
    evidence_only: bool = False
    """It mends nothing and slows training: for the next attempt alone."""

    @property
    def changes_nothing(self) -> bool:
        """True of a plain retry."""
        return not self.env and self.in_process is None and self.argument is None

    def suits(self, argv: Sequence[str]) -> bool:
        """Whether the command is one that it can be applied to."""
        return self.argument is None or self.argument.fits(argv)
