"""A bundle on request: of a run or of any process tree; nothing is killed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.core.model import EvidenceResult, Member
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.collect import collect
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.trusted_files import hold, make_folder, names

_IDS_CAP = 9999


def claim_bundle(stalls: Path) -> Path:
    """A new numbered folder for a bundle: mkdir decides between two commands at once.

    Raises:
        WtrainError: the place cannot be written.
    """
    try:
        stalls.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hold(stalls.parent)
        make_folder(stalls)
        taken = [int(name) for name in names(stalls) if name.isdigit()]
        for number in range(max(taken, default=0) + 1, _IDS_CAP + 1):
            folder = stalls / f"{number:04d}"
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise WtrainError(
            f"evidence cannot be written here: {error.strerror}",
            context=str(stalls),
            hint="--runs-dir names another place",
            reference="evidence-unwritable",
        ) from error
    raise WtrainError("too many bundles", context=str(stalls), reference="evidence-too-many")


def collect_now(
    members: Sequence[Member],
    folder: Path,
    *,
    slot_dir: Path | None = None,
    attempt_dir: Path | None = None,
    attempt: int = 0,
    command: Sequence[str] = (),
) -> EvidenceResult:
    """A full bundle of these processes in `folder`; kills nothing."""
    staging = Path(tempfile.mkdtemp(prefix="wtrain-dump-"))
    verdict = BundleVerdict(
        id=folder.name,
        why="manual",
        at=time.time(),
        attempt=attempt,
        words="asked for by hand",
        command=tuple(command),
    )
    result = collect(
        EvidenceRequest(
            mode="full",
            verdict=verdict,
            out_dir=str(folder),
            staging_dir=str(staging),
            members=tuple(members),
            slot_dir=str(slot_dir) if slot_dir else None,
            attempt_dir=str(attempt_dir) if attempt_dir else None,
        )
    )
    if result.dir == str(folder):
        shutil.rmtree(staging, ignore_errors=True)
    return result
