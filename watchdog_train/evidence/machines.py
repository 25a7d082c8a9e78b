"""Bundles of the machines of one job, read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.job.machines import FOLDER
from watchdog_train.core.model import Explanation, JointAnswer
from watchdog_train.evidence.bundle import Bundle, BundleMachine, read_bundle
from watchdog_train.whole_files import read_json

JOINT_FILE = "joint.json"
"""In the leader's bundle: the explanation by the evidence of all machines."""
_JOINT_BYTES = 16 << 20
_replace = msgspec.structs.replace


def machine_folders(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in (folder / FOLDER).iterdir() if each.is_dir())
    except OSError:
        return []


def read_whole(folder: Path) -> Bundle | None:
    """A bundle joined with those of the other machines of its job.

    The verdict is from a machine with a crash, else from the leader. So is the explanation, unless
    a joint one was stored.
    """
    ours = read_bundle(folder)
    read = ((place, read_bundle(place)) for place in machine_folders(folder))
    theirs = {place: bundle for place, bundle in read if bundle is not None}
    if ours is None or not theirs:
        return ours
    parts = {folder: ours, **theirs}
    speaks = next((one for one in parts.values() if one.verdict.crash is not None), ours)
    joint = read_json(folder / JOINT_FILE, JointAnswer, cap_bytes=_JOINT_BYTES)
    found = speaks.explanation
    if joint is not None and joint.explanation is not None:
        found = _on_its_machine(joint.explanation, parts.get(Path(joint.where or "")), parts)
    processes = tuple(each for one in parts.values() for each in one.verdict.processes)
    return _replace(
        speaks,
        verdict=_replace(speaks.verdict, processes=processes),
        explanation=found,
        evidence=together([one.evidence for one in parts.values()]),
        machines=tuple(
            BundleMachine(
                name="" if place == folder else place.name,
                hostname=one.verdict.hostname,
                ranks=tuple(p.rank for p in one.evidence.processes if p.rank is not None),
            )
            for place, one in parts.items()
        ),
    )


def _on_its_machine(
    found: Explanation, where: Bundle | None, parts: Mapping[Path, Bundle]
) -> Explanation:
    names = {one.verdict.hostname for one in parts.values()}
    if found.root is None or where is None or len(names) < 2:
        return found
    who = _replace(found.root.who, host=where.verdict.hostname)
    return _replace(found, root=_replace(found.root, who=who))


def _as_part(number: int, evidence: Evidence) -> Evidence:
    return _replace(
        evidence,
        processes=tuple(_replace(process, part=number) for process in evidence.processes),
        logs=tuple(_replace(log, part=number) for log in evidence.logs),
    )


def together(found: Sequence[Evidence]) -> Evidence:
    """Several pieces of evidence of one job as one; a pid means something only within its part."""
    if len(found) == 1:
        return found[0]
    found = [_as_part(number, one) for number, one in enumerate(found)]
    return _replace(
        found[0],
        why=next((one.why for one in found if one.why == "stall"), found[0].why),
        processes=tuple(p for one in found for p in one.processes),
        logs=tuple(log for one in found for log in one.logs),
        exit=next((one.exit for one in found if one.exit is not None), None),
        locks=tuple(lock for one in found for lock in one.locks),
        collectives=tuple(fact for one in found for fact in one.collectives),
        exchanging=tuple(rank for one in found for rank in one.exchanging),
        exceptions=tuple(fact for one in found for fact in one.exceptions),
        world_size=next((one.world_size for one in found if one.world_size), None),
    )
