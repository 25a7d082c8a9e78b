"""Which bundle a user means: an id, a run, a folder, or the newest."""

from __future__ import annotations

import os
from pathlib import Path

from watchdog_train.cli.log_files import modified_at
from watchdog_train.cli.screen import echo
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.bundle import VERDICT_FILE, Bundle, bundle_folders
from watchdog_train.evidence.text.bring import read_whole
from watchdog_train.store.resolve import resolve
from watchdog_train.store.run_paths import default_runs_dir, runs_in
from watchdog_train.trusted_files import distrusted


def stall_folder(stall: str | None, run_ref: str | None, runs_dir: Path | None) -> Path:
    """The folder of a bundle.

    Raises:
        WtrainError: there is no such stall, or none at all.
    """
    if stall is not None and (Path(stall) / VERDICT_FILE).is_file():
        return Path(stall)
    if stall is None and run_ref is None:
        newest = _newest_here(runs_dir or default_runs_dir())
        if newest is not None:
            return newest
    is_id = stall is not None and stall.isdigit()
    run = resolve(run_ref if is_id or stall is None else stall, runs_dir)
    if is_id and stall is not None:
        folder = run.stall(stall.zfill(4))
        if (folder / VERDICT_FILE).is_file():
            return folder
        known = ", ".join(path.name for path in bundle_folders(run.stalls)) or "none"
        raise WtrainError(
            f"there is no stall {stall}",
            context=str(run.path),
            hint=f"there are: {known}",
            reference="stall-unknown",
        )
    folders = bundle_folders(run.stalls)
    if not folders:
        raise WtrainError(
            "nothing was caught in this run",
            context=str(run.path),
            hint="wtrain dump takes evidence now",
            reference="stall-unknown",
        )
    return folders[-1]


def _newest_here(place: Path) -> Path | None:
    """The newest dump of a foreign process, where it is newer than all that the newest run has."""
    dumps = [folder for path in place.glob("pid-*/stalls") for folder in bundle_folders(path)[-1:]]
    newest = max(dumps, key=lambda folder: modified_at(folder / VERDICT_FILE), default=None)
    if newest is None:
        return None
    at = modified_at(newest / VERDICT_FILE)
    for run in runs_in(place)[-1:]:
        ours = [run.path / "config.yaml", *(f / VERDICT_FILE for f in bundle_folders(run.stalls))]
        if any(modified_at(path) > at for path in ours):
            return None
    return newest


def read_or_refuse(folder: Path) -> Bundle:
    """The bundle in this folder.

    Raises:
        WtrainError: it cannot be read.
    """
    bundle = read_whole(folder)
    if bundle is None:
        raise WtrainError(
            "this bundle cannot be read", context=str(folder), reference="bundle-unreadable"
        )
    if (foreign := distrusted(os.stat(folder))) is not None:
        echo(f"wtrain: {folder}: {foreign}; it is only read", err=True)
    return bundle
