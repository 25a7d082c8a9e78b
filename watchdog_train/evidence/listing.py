"""Finds bundles on disk. Only reads."""

from __future__ import annotations

import os
from pathlib import Path

from watchdog_train.evidence.bundle import VERDICT_FILE, Bundle, read_bundle

BUNDLES_CAP = 1000


def bundle_folders(stalls: Path) -> tuple[Path, ...]:
    """Folders with a verdict, oldest first."""
    try:
        names = sorted(name for name in os.listdir(stalls) if name.isdigit())
    except OSError:
        return ()
    found = (stalls / name for name in names[-BUNDLES_CAP:])
    return tuple(path for path in found if (path / VERDICT_FILE).is_file())


def bundles_in(stalls: Path) -> tuple[tuple[Path, Bundle], ...]:
    """All bundles that can be read, oldest first."""
    read = ((path, read_bundle(path)) for path in bundle_folders(stalls))
    return tuple((path, bundle) for path, bundle in read if bundle is not None)
