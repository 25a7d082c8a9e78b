"""Paths -> evidence: bundles of ours as they are, everything else as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence, LogText
from watchdog_train.evidence.bundle import LOG_FILE, VERDICT_FILE, read_bundle
from watchdog_train.evidence.text.gather import gather
from watchdog_train.evidence.text.sources import read_sources

_TITLE = "==> "


def evidence_from(paths: Sequence[str]) -> tuple[Evidence, list[str]]:
    """The evidence at these places together, and notes on what was not read.

    Raises:
        WtrainError: a path does not exist, or there is nothing to read in all of them.
    """
    found: list[Evidence] = []
    notes: list[str] = []
    texts: list[str] = []
    for path in paths:
        bundle = _bundle(path)
        if bundle is None:
            texts.append(path)
        else:
            found.append(bundle)
    if texts:
        sources, notes = read_sources(texts)
        found.append(gather(sources))
    return together(found), notes


def _bundle(path: str) -> Evidence | None:
    """A stall folder of ours; of a run directory its newest one."""
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        return None
    if not (folder / VERDICT_FILE).is_file():
        newest = sorted((folder / "stalls").glob(f"[0-9]*/{VERDICT_FILE}"))
        if not newest:
            return None
        folder = newest[-1].parent
    bundle = read_bundle(folder)
    if bundle is None:
        return None
    evidence = bundle.evidence
    return msgspec.structs.replace(evidence, logs=_logs(folder))


def _logs(folder: Path) -> tuple[LogText, ...]:
    """log-tail.txt: several logs, each under its title."""
    if not (folder / LOG_FILE).is_file():
        return ()
    sources, _ = read_sources([str(folder / LOG_FILE)])
    logs: list[tuple[str, list[str]]] = []
    for line in sources[0].text.split("\n"):
        if line.startswith(_TITLE) and line.endswith(" <=="):
            logs.append((line[len(_TITLE) : -len(" <==")], []))
        elif logs and line.strip():
            logs[-1][1].append(line)
    return tuple(LogText(source=name, lines=tuple(lines)) for name, lines in logs if lines)


def _as_part(number: int, evidence: Evidence) -> Evidence:
    of = msgspec.structs.replace
    return of(
        evidence,
        processes=tuple(of(process, part=number) for process in evidence.processes),
        logs=tuple(of(log, part=number) for log in evidence.logs),
    )


def together(found: Sequence[Evidence]) -> Evidence:
    """Several pieces of evidence of one job as one; a pid means something only within its part."""
    if len(found) == 1:
        return found[0]
    found = [_as_part(number, one) for number, one in enumerate(found)]
    first = found[0]
    return msgspec.structs.replace(
        first,
        why=next((one.why for one in found if one.why == "stall"), first.why),
        processes=tuple(p for one in found for p in one.processes),
        logs=tuple(log for one in found for log in one.logs),
        exit=next((one.exit for one in found if one.exit is not None), None),
        locks=tuple(lock for one in found for lock in one.locks),
        collectives=tuple(fact for one in found for fact in one.collectives),
        exchanging=tuple(rank for one in found for rank in one.exchanging),
        world_size=next((one.world_size for one in found if one.world_size), None),
    )
