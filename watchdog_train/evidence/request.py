"""The request to a collector, and where its answer is; light enough for the supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.core.model import EvidenceResult, Member, RankEnd, SaveRecord, Value
from watchdog_train.core.model.explanation import Silence
from watchdog_train.core.model.gpu import GpuSeen, GpuUse
from watchdog_train.core.policy import WaitLimits
from watchdog_train.evidence.redact import redact_data, redact_text
from watchdog_train.trusted_files import open_read, remove
from watchdog_train.whole_files import read_json

RESULT_FILE = "result.json"
PARTIAL_FILE = "partial.json"
"""In the staging folder: the answer so far, and all that remains of a killed collector."""
RESULT_CAP_BYTES = 16 * 1024 * 1024


class EvidenceRequest(Value):
    """One collection.

    `look`: non-blocking stacks and a diagnosis, only `result.json` is written. `full`: a bundle.
    """

    mode: Literal["look", "full"]
    verdict: BundleVerdict
    """The supervisor's decision; the collector adds its findings."""
    out_dir: str
    """The bundle's final place; made if missing."""
    staging_dir: str
    """On a local disk or tmpfs, private to this collection; the bundle grows here first, and
    stays here when `out_dir` cannot be written."""
    members: tuple[Member, ...] = ()
    ended: tuple[RankEnd, ...] = ()
    device: bool = False
    """Native stacks and local variables of all ranks: they may wait for their GPUs."""
    slot_dir: str | None = None
    attempt_dir: str | None = None
    log_files: tuple[str, ...] = ()
    deadline_s: float = 20.0
    process_s: float = 10.0
    kill_follows: bool = False
    """The processes are killed whatever is found, so a way that may crash them is allowed."""
    last_save: SaveRecord | None = None
    """The newest one of this attempt that has succeeded."""
    oom_kills_before: int | None = None
    """`host.oom_kills()` at the start of the attempt, so that only newer ones count."""
    gpu_seen: GpuSeen = GpuSeen()
    silence: Silence = Silence()
    patience: WaitLimits = WaitLimits()


class JointRequest(Value):
    """Diagnose several bundles of one job together; see evidence.joint."""

    bundles: tuple[str, ...]
    """Their directories; the answer is kept in the first."""
    out: str = ""


def without_secrets(request: EvidenceRequest) -> EvidenceRequest:
    """For `python -m watchdog_train.evidence.collect FILE`; it becomes a part of the bundle.

    Paths stay as they are: the collector follows them.
    """
    seen = request.gpu_seen
    uses = {pid: _without_secrets(use) for pid, use in seen.uses.items()}
    others = tuple(map(redact_text, seen.others))
    return msgspec.structs.replace(
        request,
        verdict=msgspec.convert(redact_data(request.verdict), BundleVerdict),
        gpu_seen=msgspec.structs.replace(seen, uses=uses, others=others),
    )


def _without_secrets(use: GpuUse) -> GpuUse:
    return msgspec.structs.replace(use, other_names=tuple(map(redact_text, use.other_names)))


def read_request(path: Path) -> EvidenceRequest:
    with open_read(path) as file:
        return msgspec.json.decode(file.read(), type=EvidenceRequest)


def read_result(request: EvidenceRequest) -> EvidenceResult | None:
    """The answer, from the bundle or, if that could not be written, from the staging folder."""
    found = (_read_result(folder) for folder in (request.out_dir, request.staging_dir))
    return next((result for result in found if result is not None), None)


def read_partial(request: EvidenceRequest) -> EvidenceResult | None:
    """The answer so far of a killed collector; the draft of its bundle is in the same folder."""
    return _read_result(request.staging_dir, PARTIAL_FILE)


def forget_answers(request: EvidenceRequest) -> None:
    """Remove the files of an earlier collection with the same staging folder.

    Raises:
        OSError: it cannot be removed.
    """
    for name in (RESULT_FILE, PARTIAL_FILE):
        remove(Path(request.staging_dir, name))


def _read_result(folder: str, name: str = RESULT_FILE) -> EvidenceResult | None:
    return read_json(Path(folder) / name, EvidenceResult, cap_bytes=RESULT_CAP_BYTES)
