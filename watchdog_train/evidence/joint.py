"""Diagnoses the bundles of all tasks of a job as one, in a process of its own.

It only reads what the tasks have written, and writes `joint.json` into the first bundle.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import busiest_thread
from watchdog_train.core.diagnosis.places import root_process
from watchdog_train.core.diagnosis.stacks import deciding_frame
from watchdog_train.core.model import JointAnswer
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.redact import write_json
from watchdog_train.evidence.request import JointRequest
from watchdog_train.evidence.text.bring import JOINT_FILE, evidence_in, together
from watchdog_train.explain.because import judge
from watchdog_train.rules import load_rules
from watchdog_train.trusted_files import open_read

SCHEMA_VERSION = 1


def answer(request: JointRequest) -> JointAnswer:
    """The diagnosis, or why there is none."""
    read = ((path, evidence_in(Path(path))) for path in request.bundles)
    found = {path: evidence for path, evidence in read if evidence is not None}
    there = list(found)
    if len(there) < 2:
        return JointAnswer(explanation=None, problem="fewer than two bundles can be read")
    try:
        rules = load_rules(request.rules_dirs)
    except WtrainError:
        rules = load_rules()  # the collector of each bundle has said which file is broken
    whole = together(list(found.values()))
    told = judge(whole, rules)
    guilty = root_process(whole, told)
    answered = JointAnswer(
        explanation=told,
        where=None if guilty is None else there[guilty.part],
    )
    _keep(request, there, answered, whole)
    return answered


def _keep(request: JointRequest, there: list[str], found: JointAnswer, whole: Evidence) -> None:
    names = dict(zip(request.bundles, request.names, strict=False))
    content = {
        "schema_version": SCHEMA_VERSION,
        "bundles": there,
        "root_in": found.where,
        "explanation": msgspec.to_builtins(found.explanation),
        "processes": [
            {
                "bundle": there[one.part],
                "task": names.get(there[one.part]),
                "pid": one.pid,
                "role": one.role,
                "rank": one.rank,
                "worker": one.worker,
                "state": one.state,
                "at": _place(one),
                "why_not": one.why_not,
            }
            for one in whole.processes
        ],
    }
    with suppress(OSError):  # the diagnosis is in the event log as well
        write_json(Path(request.bundles[0]) / JOINT_FILE, content)


def _place(process: ProcessEvidence) -> str | None:
    thread = busiest_thread(process.threads)
    frame = deciding_frame(thread.frames) if thread is not None else None
    return None if frame is None else str(frame)


def main() -> int:
    """Answers the request in the file that is named."""
    with open_read(sys.argv[1]) as file:
        request = msgspec.json.decode(file.read(), type=JointRequest)
    write_json(Path(request.out), answer(request))
    return 0


if __name__ == "__main__":
    sys.exit(main())
