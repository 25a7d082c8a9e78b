"""What `wtrain diagnose` prints: the answer first, then frames, cause and remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.stacks import both_ends
from watchdog_train.core.model import CodePlace, Explanation, signal_name
from watchdog_train.core.model.exceptions import Failure
from watchdog_train.report.evidence_text import changes, glance
from watchdog_train.report.explanation_text import because, file_line, more_sentences, what_happened
from watchdog_train.report.words import clean

_WIDTH, _FILE_WIDTH = 80, 48
_FRAMES, _OTHERS = 6, 3
_MESSAGE_CAP, _NAME_CAP = 400, 200
NOTHING = "no exception, stack or known error message found"


def diagnosis_text(
    found: Explanation,
    evidence: Evidence,
    failures: Sequence[Failure],
    read: Sequence[str],
    remedy_words: Mapping[str, str],
) -> str:
    """The first line is the answer; all lines have at most 80 columns."""
    cause = because(found)
    told: list[str] = []
    if failures:
        told = [*_failures(failures)]
    elif evidence.processes:
        told = [what_happened(found), *more_sentences(found), f"where: {glance(evidence, found)}"]
    elif not cause:
        last = [f"last line: {line.strip()}" for log in evidence.logs for line in log.lines[-1:]]
        told = [NOTHING, *(clean(line, _MESSAGE_CAP) for line in last[:_OTHERS])]
    told += [f"cause: {cause}"] if cause else []
    told += [f"change {text}" for text in changes(found, remedy_words)]
    told.append(f"read: {', '.join(clean(name, _NAME_CAP) for name in read)}")
    lines = (wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in told)
    return "\n".join(line for part in lines for line in part)


def _failures(failures: Sequence[Failure]) -> Iterator[str]:
    first = failures[0]
    yield failure_words(first)
    for place in first.fact.frames[-_FRAMES:]:
        where = f"  {both_ends(clean(place.file, _MESSAGE_CAP), _FILE_WIDTH)}:{place.line}"
        source = f": {clean(place.source, _NAME_CAP)}" if place.source else ""
        yield both_ends(f"{where} in {_called(place)}{source}", _WIDTH)
    for one in reversed(first.fact.chain):
        yield clean(f"after {one.type}: {one.message}", _MESSAGE_CAP)
    if first.shown == "cut":
        yield "The text ends inside this traceback."
    others = dict.fromkeys(map(failure_words, failures[1:]))
    others.pop(failure_words(first), None)
    yield from (f"also: {other}" for other in [*others][:_OTHERS])
    if len(others) > _OTHERS:
        yield f"and {len(others) - _OTHERS} more"


def failure_words(failure: Failure) -> str:
    """`RuntimeError at train.py:88 in step(): size mismatch (rank 1)`."""
    fact, place = failure.fact, failure.fact.place
    what = clean(fact.type, _NAME_CAP) or "an exception"
    if failure.shown == "signal" and failure.signal is not None:
        what = f"killed by {signal_name(failure.signal)}"
    if place is not None:
        what += f" at {file_line(place)} in {_called(place)}"
    if fact.message:
        what += f": {clean(fact.message, _MESSAGE_CAP)}"
    whose = [f"rank {fact.rank}"] if fact.rank is not None else []
    whose += [f"DataLoader worker {fact.worker}"] if fact.worker is not None else []
    whose += [clean(fact.thread, _NAME_CAP)] if fact.thread else []
    return f"{what} ({', '.join(whose)})" if whose else what


def _called(place: CodePlace) -> str:
    name = clean(place.function, _NAME_CAP)
    return name if name.startswith("<") else f"{name}()"
