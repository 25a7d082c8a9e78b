"""Diagnoses the bundles of all tasks of a job as one, in a process of its own.

It only reads what the tasks have written, and writes `joint.json` into the first bundle.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.places import root_process
from watchdog_train.core.model import JointAnswer
from watchdog_train.evidence.bundle import read_bundle, read_logs
from watchdog_train.evidence.installed_families import all_families
from watchdog_train.evidence.machines import JOINT_FILE, together
from watchdog_train.evidence.redact import write_json
from watchdog_train.evidence.request import JointRequest
from watchdog_train.explain.judge import judge
from watchdog_train.trusted_files import open_read


def answer(request: JointRequest) -> JointAnswer:
    read = ((path, read_bundle(Path(path))) for path in request.bundles)
    found = {
        path: msgspec.structs.replace(bundle.evidence, logs=read_logs(Path(path)))
        for path, bundle in read
        if bundle is not None
    }
    there = list(found)
    if not there:
        return JointAnswer(explanation=None, problem="no bundle can be read")
    whole = together(list(found.values()))
    told = judge(whole, families=all_families()[0])
    guilty = root_process(whole, told)
    answered = JointAnswer(
        explanation=told,
        where=None if guilty is None else there[guilty.part],
    )
    with suppress(OSError):  # the diagnosis is in the event log as well
        write_json(Path(request.bundles[0]) / JOINT_FILE, answered)
    return answered


def main() -> int:
    with open_read(sys.argv[1]) as file:
        request = msgspec.json.decode(file.read(), type=JointRequest)
    write_json(Path(request.out), answer(request))
    return 0


if __name__ == "__main__":
    sys.exit(main())
