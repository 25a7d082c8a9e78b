"""Reads the corpus: a JSON line for each case, its evidence as collectors give it.

`expect` lists the families that are right, the most exact one first; insufficient-evidence stands
for "I do not know".
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.stacks import Frame
from watchdog_train.core.model import Explanation, Value

FOLDER = Path(__file__).parent
PARTS = ("tuning", "held_out", "captured")
UNKNOWN = "insufficient-evidence"
CERTAINTIES = ("possible", "likely", "proven")
PREFIXES = (
    "/opt/conda/envs/train/lib/python3.10/site-packages/",
    "/home/u/.venv/lib/python3.12/site-packages/",
    "C:\\Users\\u\\venv\\Lib\\site-packages\\",
    "/usr/local/lib/python3.8/dist-packages/",
)
_replace = msgspec.structs.replace


class Case(Value):
    """One piece of evidence with the answers that are right."""

    name: str
    expect: tuple[str, ...]
    evidence: Evidence
    culprit: str | None = None
    """As `named` writes it."""
    at_most: str = "proven"
    """Certainty that the evidence allows."""

    @property
    def healthy(self) -> bool:
        return "healthy-slow" in self.expect


def read_cases(part: str) -> list[Case]:
    """All cases of one folder here, each named after its file, too."""
    return [
        _replace(case, name=f"{path.stem}/{case.name}")
        for path in sorted((FOLDER / part).glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
        for case in [msgspec.json.decode(line, type=Case)]
    ]


def write_cases(path: Path, cases: list[Case]) -> None:
    """One file of a folder here; what is at its default is left out."""
    path.write_bytes(b"".join(msgspec.json.encode(_plain(case)) + b"\n" for case in cases))


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if not isinstance(value, msgspec.Struct):
        return value
    config = value.__struct_config__
    found = {config.tag_field: config.tag} if config.tag is not None else {}
    for field in msgspec.structs.fields(value):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        known = getattr(value, field.name)
        if known != default:
            found[field.encode_name] = _plain(known)
    return found


def judged(case: Case, found: Explanation) -> list[str]:
    """What one answer counts as."""
    family = found.family or UNKNOWN
    certainty = found.because.certainty if found.because is not None else "possible"
    modest = CERTAINTIES.index(certainty) <= CERTAINTIES.index(case.at_most)
    right = family in case.expect and modest
    words = ["judged", "right" if right else "wrong"]
    if family not in case.expect and certainty != "possible":
        words.append("sure and wrong")
    if case.healthy:
        words.append("healthy")
        if family not in case.expect and found.kind in ("hang", "crash"):
            words.append("false verdict")
    if case.culprit is not None:
        words.append("culprit asked")
        same = right and (named(found) or "none") == case.culprit
        words.append("culprit right" if same else "culprit wrong")
    return words


def named(found: Explanation) -> str | None:
    """`rank 0 worker`, `rank 3`, `rank`: the root as the corpus writes it, without pids."""
    if found.root is None:
        return None
    who = found.root.who
    rank = "rank" if who.rank is None else f"rank {who.rank}"
    return rank if who.role == "rank" else f"{rank} {who.role}"


def renderings(case: Case) -> dict[str, Case]:
    """The case as it is, and as another machine would show it: neither path nor line may matter."""
    processes = tuple(
        _replace(
            process,
            threads=tuple(
                _replace(thread, frames=tuple(map(_moved, thread.frames)))
                for thread in process.threads
            ),
        )
        for process in case.evidence.processes
    )
    moved = _replace(case, evidence=_replace(case.evidence, processes=processes))
    return {"as captured": case, "elsewhere": moved} if moved != case else {"as captured": case}


def _moved(frame: Frame) -> Frame:
    """Below another prefix, at another line; the user's own files stay where they are."""
    file = frame.short
    if frame.native or "/" not in file or file.startswith(("<", "/")):
        return frame
    number = int(hashlib.sha256(f"{frame.function}{file}".encode()).hexdigest()[:4], 16)
    prefix = PREFIXES[number % len(PREFIXES)]
    path = prefix + (file.replace("/", "\\") if "\\" in prefix else file)
    return _replace(frame, file=path, line=frame.line + number % 90 + 1)
