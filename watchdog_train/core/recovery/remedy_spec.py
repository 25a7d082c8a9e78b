"""What the core must know of a remedy. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core.model import RemedyKind, Value


def parted(word: str) -> tuple[str, int | None]:
    """The remedy and the number of `ID` or `ID=N`; without a number what cannot be read as such."""
    name, _, number = word.partition("=")
    if number.isascii() and number.isdigit() and len(number) < 10 and int(number):
        return name, int(number)
    return word, None


class RemedySpec(Value):
    """What the core must know of a remedy; the catalogue adds what a person wants to read."""

    id: str
    kind: RemedyKind = "execution"
    summary: str
    """What it does, as a clause: `loads data in the main process`."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    in_process: dict[str, Any] | None = None
    """An entry of WTRAIN_SETTINGS for the client, None when the environment does it all."""
    in_part: dict[str, Any] | None = None
    """The entry of a remedy that must be allowed, as far as it needs no permission."""
    needs_allow: bool = False
    """Never by itself although its kind would be."""
    for_trials: bool = False
    """It leaves most of the training out: only by its own id, never by its kind."""
    counts_attempts: bool = False
    """It goes one step further in each attempt: its entry says the how many-th it is (`times`)."""
    evidence_only: bool = False
    """It mends nothing and slows training: for the next attempt alone."""

    @property
    def changes_nothing(self) -> bool:
        """True of a plain retry."""
        return not self.env and self.in_process is None

    @property
    def number(self) -> int | None:
        """What it takes where `--with ID=N` says no other; None where it takes no number."""
        return (self.in_process or {}).get("n")
