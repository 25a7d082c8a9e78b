"""What runs have learnt about pauses, in the user's state directory: one small file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from watchdog_train.core import pauses as rule
from watchdog_train.core.model import Pause
from watchdog_train.store.places import state_directory
from watchdog_train.trusted_files import open_read
from watchdog_train.whole_files import replace_json

_MAX_BYTES = 262_144


def path() -> Path:
    """Where it is, or would be."""
    return state_directory() / "pauses.json"


def known() -> tuple[Pause, ...]:
    """What earlier runs have left; nothing of a file that another user may write to."""
    try:
        with open_read(path(), trusted=True) as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=tuple[Pause, ...])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()


def remember(found: Iterable[Pause], *, directory: str, well: bool) -> str | None:
    """Add a run that has ended; why what it has taught is lost, None where nothing is.

    Two runs that end in the same moment may lose what one of them has taught.
    """
    found, before = tuple(found), known()
    after = rule.learn(before, found, directory=directory, well=well)
    if after == before:
        return None
    try:
        path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_json(path(), after)
    except OSError as error:
        return f"{path()}: {error.strerror or error}"
    return None
