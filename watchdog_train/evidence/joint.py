"""Diagnoses the bundles of all tasks of a job as one, in a process of its own.

It only reads what the tasks have written, and writes `joint.json` into the first bundle.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.diagnose import diagnose
from watchdog_train.core.facts import Evidence
from watchdog_train.core.model import Culprit, JointAnswer
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.request import JointRequest
from watchdog_train.evidence.text.bring import evidence_from, together
from watchdog_train.rules import load_rules
from watchdog_train.whole_files import replace_whole

JOINT_FILE = "joint.json"
SCHEMA_VERSION = 1


def answer(request: JointRequest) -> JointAnswer:
    """The diagnosis, or why there is none."""
    there = [path for path in request.bundles if Path(path).is_dir()]
    if len(there) < 2:
        return JointAnswer(diagnosis=None, problem="fewer than two bundles can be read")
    try:
        found = [evidence_from([path])[0] for path in there]
    except WtrainError as error:
        return JointAnswer(diagnosis=None, problem=error.message)
    try:
        rules = load_rules(request.rules_dirs)
    except WtrainError:
        rules = load_rules()  # the collector of each bundle has said which file is broken
    diagnosis, _ = diagnose(together(found), rules)
    answered = JointAnswer(diagnosis=diagnosis, where=_where(diagnosis.culprit, there, found))
    _keep(request, there, answered)
    return answered


def _where(
    culprit: Culprit | None, bundles: Sequence[str], found: Sequence[Evidence]
) -> str | None:
    if culprit is None or culprit.rank is None:
        return None
    for path, evidence in zip(bundles, found, strict=True):
        if any(one.rank == culprit.rank and one.pid == culprit.pid for one in evidence.processes):
            return path
    return None


def _keep(request: JointRequest, there: list[str], found: JointAnswer) -> None:
    content = {
        "schema_version": SCHEMA_VERSION,
        "bundles": there,
        "culprit_in": found.where,
        "diagnosis": msgspec.to_builtins(found.diagnosis),
    }
    with suppress(OSError):  # the diagnosis is in the event log as well
        text = msgspec.json.format(msgspec.json.encode(content))
        replace_whole(Path(request.bundles[0]) / JOINT_FILE, text)


def main() -> int:
    """Answers the request in the file that is named."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=JointRequest)
    replace_whole(Path(request.out), msgspec.json.encode(answer(request)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
