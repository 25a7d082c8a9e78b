"""What a collector is asked for, and where its answer is; light enough for the supervisor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from watchdog_train.core.model import BundleWhy, EvidenceResult, ExitStatus, Member, RankEnd

RESULT_FILE = "result.json"
RESULT_CAP_BYTES = 16 * 1024 * 1024


class EvidenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One collection.

    `look`: non-blocking stacks and a diagnosis, only `result.json` is written. `full`: a bundle.
    """

    mode: Literal["look", "full"]
    stall_id: str
    why: BundleWhy
    out_dir: str
    """Where the bundle belongs; made when missing."""
    staging_dir: str
    """On a local disk or tmpfs, private to this collection; the bundle grows here first, and
    stays here when `out_dir` cannot be written."""
    members: tuple[Member, ...] = ()
    ended: tuple[RankEnd, ...] = ()
    """Ranks that are not there any more."""
    verdict: dict[str, Any] = msgspec.field(default_factory=dict)
    """kind, basis, phase, ranks, beat_age_s, at, attempt, why: goes into verdict.json as it is."""
    slot_dir: str | None = None
    attempt_dir: str | None = None
    log_files: tuple[str, ...] = ()
    log_tail_lines: int = 200
    deadline_s: float = 20.0
    process_s: float = 10.0
    exit: ExitStatus | None = None
    command: tuple[str, ...] = ()
    rules_dirs: tuple[str, ...] = ()
    """More rule files of the user's."""
    oom_kills_before: int | None = None
    """`host.oom_kills()` at the start of the attempt, so that only newer ones count."""
    gpu_others: tuple[str, ...] = ()
    """Processes of others with memory on the job's GPUs, for a person."""
    done: tuple[str, ...] = ()
    """What was or will be done about it, for SUMMARY.md."""


class JointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Diagnose several bundles of one job together; see evidence.joint."""

    bundles: tuple[str, ...]
    """Their directories; the answer is kept in the first."""
    out: str
    rules_dirs: tuple[str, ...] = ()


def write_request(request: EvidenceRequest, path: Path) -> None:
    """For `python -m watchdog_train.evidence.collect PATH`."""
    write_private(path, msgspec.json.encode(request))


def read_request(path: Path) -> EvidenceRequest:
    """The request of a file."""
    return msgspec.json.decode(path.read_bytes(), type=EvidenceRequest)


def read_result(request: EvidenceRequest) -> EvidenceResult | None:
    """The answer, from the bundle or, when that could not be written, from the staging folder."""
    found = map(_read_result, (request.out_dir, request.staging_dir))
    return next((result for result in found if result is not None), None)


def _read_result(folder: str) -> EvidenceResult | None:
    try:
        with open(os.path.join(folder, RESULT_FILE), "rb") as file:
            return msgspec.json.decode(file.read(RESULT_CAP_BYTES), type=EvidenceResult)
    except (OSError, msgspec.DecodeError):
        return None


def write_private(path: Path, content: bytes) -> None:
    """Atomically, mode 0600: a reader sees the old file, the new one or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
