"""Gives a trial a place of its own to write to, with what the training's own place holds.

Must not write, rename or delete anything outside the folder of the trial.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from watchdog_train.checkpoints.find import PlaceOption, place_options
from watchdog_train.errors import WtrainError

COPY_BYTES = 1 << 30
COPY_FILES = 20_000
"""A larger place is not copied: the trial begins with an empty one."""


def refuse_shared(options: Sequence[PlaceOption]) -> None:
    """Do not let trials write over the training's own results unasked.

    Raises:
        WtrainError: exit code 78: no option of the command says where it writes.
    """
    if not options:
        raise WtrainError(
            "where the command writes is not known: trials could write over its results",
            hint="--output-option NAME names the option that says where; --in-place lets the "
            "trials write where the training writes",
            reference="bisect-output-unknown",
        )


def of_its_own(
    command: Sequence[str], cwd: str, names: Sequence[str], folder: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command of a trial, and what is said of its places.

    Raises:
        OSError: nothing can be copied here.
    """
    changed, said = list(command), []
    targets: dict[str, str] = {}
    for option in place_options(command, cwd, names):
        if option.path not in targets:
            target = folder / f"{len(targets)}-{os.path.basename(option.path)[:80] or 'output'}"
            targets[option.path] = str(target)
            why = _copy(Path(option.path), target)
            if why is not None:
                said.append(f"{option.path} {why}: the trials begin with an empty one")
        changed[option.position] = option.before + targets[option.path]
    return tuple(changed), tuple(said)


def _copy(source: Path, target: Path) -> str | None:
    """Copy a file or a folder that is small enough; else the reason why it is not."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if source.is_file():
        if source.stat().st_size > COPY_BYTES:
            return "is too large to copy"
        shutil.copyfile(source, target)
        return None
    if not source.is_dir():
        return None
    size_bytes = 0
    for files, path in enumerate(_files(source), 1):
        size_bytes += path.lstat().st_size
        if files > COPY_FILES or size_bytes > COPY_BYTES:
            target.mkdir(mode=0o700)
            return "is too large to copy"
    # Links stay links, and may be broken: nothing behind them is ours to copy.
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("wtrain-runs"))
    return None


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names)
