"""What a collection leaves behind: a verdict, records of processes, the answer to a look."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import BundleVerdict, ProcessEvidence
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import EvidenceResult
from watchdog_train.evidence import bundle
from watchdog_train.evidence.redact import redact_argv, write_json
from watchdog_train.evidence.request import RESULT_FILE, EvidenceRequest
from watchdog_train.evidence.targets import Target
from watchdog_train.trusted_files import make_folder


def publish_look(request: EvidenceRequest, result: EvidenceResult) -> EvidenceResult:
    """Only the answer, for a look: no bundle is written."""
    try:
        make_folder(Path(request.out_dir))
        write_json(Path(request.out_dir) / RESULT_FILE, result)
    except OSError:
        write_json(Path(request.staging_dir) / RESULT_FILE, result)
    return result


def verdict(request: EvidenceRequest, result: EvidenceResult) -> BundleVerdict:
    """verdict.json: what the supervisor said, and what came of the collection."""
    given = request.verdict
    return msgspec.convert(
        {
            **{name: given[name] for name in _VERDICT_FIELDS if given.get(name) is not None},
            "id": request.stall_id,
            "why": request.why,
            "at": given.get("at") or time.time(),
            "words": given.get("why") or given.get("words") or "",
            "processes": msgspec.to_builtins(result.processes),
            "command": redact_argv(request.command),
            "exit": msgspec.to_builtins(request.exit),
            "crash": msgspec.to_builtins(result.crash),
            "patience": result.patience,
            "fingerprint": result.fingerprint,
            "seconds": result.seconds,
            "problem": result.problem,
            "done": request.done,
        },
        BundleVerdict,
    )


_VERDICT_FIELDS = ("kind", "basis", "phase", "ranks", "beat_age_s", "attempt", "straggler")


def record(target: Target, facts: ProcessEvidence) -> bundle.ProcessRecord:
    """One entry of processes.json; its stacks are in a file of their own."""
    threads: tuple[ThreadStack, ...] = ()
    return bundle.ProcessRecord(
        facts=msgspec.structs.replace(facts, threads=threads),
        stack_file=f"{bundle.stack_name(facts)}.json" if facts.threads else None,
        kernel_stack=target.kernel_stack,
        notes=tuple(target.notes),
    )
