"""Writes and reads a bundle: the folder of one stall, crash or manual dump, readable without us.

It grows in the staging folder on a local disk and is then copied to the run directory file by
file, each atomically; what the run directory refuses stays in the staging folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from watchdog_train.core.diagnosis.facts import (
    BundleVerdict,
    Evidence,
    LogText,
    ProcessEvidence,
)
from watchdog_train.core.diagnosis.recorder import trimmed
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import EvidenceResult, Explanation, Value
from watchdog_train.core.model.gpu import DeviceLook
from watchdog_train.evidence.redact import write_json, write_text
from watchdog_train.evidence.request import PARTIAL_FILE, RESULT_FILE
from watchdog_train.report.evidence_text import stacks_text, summary
from watchdog_train.trusted_files import make_folder, read_regular
from watchdog_train.whole_files import read_json, replace_whole

VERDICT_FILE = "verdict.json"
EXPLANATION_FILE = "explanation.json"
EVIDENCE_FILE = "evidence.json"
HOST_FILE = "host.json"
LOG_FILE = "log-tail.txt"
SUMMARY_FILE = "SUMMARY.md"
STACKS_FOLDER = "stacks"
RECORDER_FOLDER = "flight-recorder"
_TITLE = "==> "
_READ_CAP = 64 << 20
BUNDLES_CAP = 1000
_T = TypeVar("_T")


class BundleMachine(Value):
    name: str
    """As its folder; empty: the leader's."""
    hostname: str
    ranks: tuple[int, ...]


class Bundle(Value):
    verdict: BundleVerdict
    explanation: Explanation | None
    evidence: Evidence
    machines: tuple[BundleMachine, ...] = ()


def stack_name(process: ProcessEvidence) -> str:
    """`rank0-worker1.pid4250`."""
    parts = []
    if process.rank is not None:
        parts.append(f"rank{process.rank}")
    elif process.role == "rank":
        parts.append("rank")
    if process.role == "worker":
        parts.append("worker" if process.worker is None else f"worker{process.worker}")
    elif process.role != "rank":
        parts.append(process.role)
    return f"{'-'.join(parts)}.pid{process.pid}"


def write_staged(staging: Path, bundle: Bundle, host: Mapping[str, Any] | None = None) -> None:
    """All files of the bundle, the summary last; `host`: more facts about the machine."""
    for process in bundle.evidence.processes:
        write_stacks(staging, process)
    write_json(staging / HOST_FILE, {"facts": bundle.evidence.host, **(host or {})})
    write_text(staging / LOG_FILE, _log_text(bundle.evidence.logs))
    write_verdict(staging, bundle.verdict, bundle.evidence)
    if bundle.explanation is not None:
        write_json(staging / EXPLANATION_FILE, bundle.explanation)
    # Not at the top: a collector reads its stacks before anything that can wait.
    from watchdog_train.remedies.catalogue import remedy_words

    text = summary(bundle.verdict, bundle.explanation, bundle.evidence, remedy_words=remedy_words())
    # wtrain's Markdown, with the training's words free of HTML and links.
    told = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("](", "]\\(")
    write_text(staging / SUMMARY_FILE, told)


def write_stacks(staging: Path, process: ProcessEvidence) -> None:
    folder = staging / STACKS_FOLDER
    make_folder(folder)
    name = stack_name(process)
    if process.threads:
        write_json(folder / f"{name}.json", process.threads)
    write_text(folder / f"{name}.txt", stacks_text(process))


def write_verdict(staging: Path, verdict: BundleVerdict, evidence: Evidence) -> None:
    """What was decided, and all facts but stacks and logs, which have files of their own."""
    processes = tuple(msgspec.structs.replace(one, threads=()) for one in evidence.processes)
    facts = msgspec.structs.replace(evidence, processes=processes, logs=())
    write_json(staging / EVIDENCE_FILE, facts)
    write_json(staging / VERDICT_FILE, verdict)


def write_recorders(staging: Path, dumps: Mapping[int, Any]) -> None:
    """The Flight Recorder of torch in each rank, trimmed, by rank."""
    folder = staging / RECORDER_FOLDER
    for rank, data in dumps.items():
        make_folder(folder)
        write_json(folder / f"rank{rank}.json", trimmed(data))


def result_of(
    verdict: BundleVerdict,
    folder: str,
    explanation: Explanation | None = None,
    device: DeviceLook | None = None,
) -> EvidenceResult:
    return EvidenceResult(
        stall_id=verdict.id,
        dir=folder,
        processes=verdict.processes,
        explanation=explanation,
        patience=verdict.patience,
        fingerprint=verdict.fingerprint,
        seconds=verdict.seconds,
        crash=verdict.crash,
        device=device,
        problem=verdict.problem,
    )


def publish(staging: Path, out: Path, result: EvidenceResult) -> EvidenceResult:
    """Copy the staged files to the run directory; on an error they stay, with `problem` set."""
    try:
        _copy(staging, out)
        write_json(out / RESULT_FILE, result)
    except OSError as error:
        problem = (
            f"the run directory cannot be written ({error.strerror}); the evidence is in {staging}"
        )
        kept = msgspec.structs.replace(
            result, dir=str(staging), problem="; ".join(filter(None, (result.problem, problem)))
        )
        write_json(staging / RESULT_FILE, kept)
        return kept
    with contextlib.suppress(OSError):
        shutil.rmtree(staging)
    return result


def bring_home(staging: Path, out: Path) -> bool:
    """Copy a bundle that publish() had to leave, once there is room; whether all was copied."""
    try:
        _copy(staging, out)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        shutil.rmtree(staging)
    return True


def _copy(staging: Path, out: Path) -> None:
    make_folder(out)
    for path in sorted(staging.rglob("*"), key=lambda item: item.name == SUMMARY_FILE):
        if path.is_file() and not path.name.startswith(".") and path.name != PARTIAL_FILE:
            target = out / path.relative_to(staging)
            make_folder(target.parent)
            replace_whole(target, path.read_bytes())


def read_bundle(folder: Path) -> Bundle | None:
    """A bundle from its folder, without its logs; None without a readable verdict.

    Tolerates missing files.
    """
    verdict = _read(folder / VERDICT_FILE, BundleVerdict)
    if verdict is None:
        return None
    evidence = _read(folder / EVIDENCE_FILE, Evidence) or Evidence(why=verdict.why)
    processes = tuple(_with_threads(folder, process) for process in evidence.processes)
    return Bundle(
        verdict=verdict,
        explanation=_read(folder / EXPLANATION_FILE, Explanation),
        evidence=msgspec.structs.replace(evidence, processes=processes),
    )


def read_logs(folder: Path) -> tuple[LogText, ...]:
    content = read_regular(str(folder / LOG_FILE), _READ_CAP)
    logs: list[tuple[str, list[str]]] = []
    for line in (content[0] if content is not None else b"").decode("utf-8", "replace").split("\n"):
        if line.startswith(_TITLE) and line.endswith(" <=="):
            logs.append((line[len(_TITLE) : -len(" <==")], []))
        elif logs and line.strip():
            logs[-1][1].append(line)
    return tuple(LogText(source=name, lines=tuple(lines)) for name, lines in logs if lines)


def _with_threads(folder: Path, process: ProcessEvidence) -> ProcessEvidence:
    if process.state == "X":
        return process  # a file of its name is of the process that has its pid now
    path = folder / STACKS_FOLDER / f"{stack_name(process)}.json"
    return msgspec.structs.replace(process, threads=_read(path, tuple[ThreadStack, ...]) or ())


def _read(path: Path, kind: type[_T]) -> _T | None:
    return read_json(path, kind, cap_bytes=_READ_CAP)


def _log_text(logs: tuple[LogText, ...]) -> str:
    parts = []
    for log in logs:
        parts += [f"{_TITLE}{log.source} <==", *log.lines, ""]
    return "\n".join(parts) or "no output was captured\n"


def bundle_folders(stalls: Path) -> tuple[Path, ...]:
    """Folders with a verdict, oldest first."""
    try:
        names = sorted(name for name in os.listdir(stalls) if name.isdigit())
    except OSError:
        return ()
    found = (stalls / name for name in names[-BUNDLES_CAP:])
    return tuple(path for path in found if (path / VERDICT_FILE).is_file())


def bundles_in(stalls: Path) -> tuple[tuple[Path, Bundle], ...]:
    """All readable bundles, oldest first."""
    read = ((path, read_bundle(path)) for path in bundle_folders(stalls))
    return tuple((path, bundle) for path, bundle in read if bundle is not None)
