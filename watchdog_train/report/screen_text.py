"""A bundle on one screen of 80 by 24: who is stuck, since when, why, what follows. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence
from watchdog_train.core.diagnosis.places import groups
from watchdog_train.core.diagnosis.stacks import trimmed
from watchdog_train.core.model import Explanation
from watchdog_train.report.evidence_text import captured_lines, glance, labels, title
from watchdog_train.report.explanation_text import (
    because,
    cause_words,
    more_sentences,
    remedy_line,
    what_happened,
)
from watchdog_train.report.why_text import exit_text
from watchdog_train.report.words import clock_time

WIDTH, HEIGHT = 80, 24
_INDENT = 8
_FRAMES = 6
_MOST = {"since": 1, "what": 6, "waits": 6, "why": 3, "where": 3, "then": 2, "known": 2, "on": 2}
"""Lines of each part if there is room for all."""
_SHORTENED = ("on", "known", "where", "then", "why", "waits", "what")
"""The order in which parts lose lines if there is no room: the answer last."""
_ROOM = HEIGHT - 1 - 2
"""Lines of a screen without the prompt and what `_more` says."""


def one_screen(
    verdict: BundleVerdict,
    found: Explanation | None,
    evidence: Evidence,
    *,
    remedy_words: Mapping[str, str] | None = None,
    machines: Sequence[str] = (),
) -> str:
    """At most 23 lines of at most 80 characters, the last one free for the prompt."""
    most, texts = dict(_MOST), _texts(verdict, found, evidence)
    texts["on"] = "; ".join(machines)
    head = _wrapped("", _head(verdict), 1 if verdict.crash is None else 3)
    changes = _changes(found, remedy_words or {})
    while len(parts := [*head, *_told(texts, most), *changes]) > _ROOM:
        name = next((name for name in _SHORTENED if most[name] > 1), None)
        if name is None:
            break
        most[name] -= 1
    more = _more(found)
    room = HEIGHT - 1 - len(parts) - len(more)
    stack = _raised(verdict, room) or _stack(found, evidence, room)
    return "\n".join([*parts[:_ROOM], *stack, *more])


def _texts(verdict: BundleVerdict, found: Explanation | None, evidence: Evidence) -> dict[str, str]:
    dead = all(process.state in ("Z", "X") for process in evidence.processes)
    return {
        "since": _since(verdict),
        "what": _what(found, verdict),
        "waits": " ".join(more_sentences(found)) if found else "",
        "why": _why(found, verdict),
        "where": "" if verdict.crash and dead else glance(evidence, found),
        "then": "; ".join(text.removeprefix("then ") for text in verdict.done),
        "known": "; ".join(captured_lines(verdict)),
    }


def _told(texts: Mapping[str, str], most: Mapping[str, int]) -> list[str]:
    return [line for name, text in texts.items() for line in _wrapped(name, text, most[name])]


def _what(found: Explanation | None, verdict: BundleVerdict) -> str:
    if verdict.crash is not None and not verdict.crash.in_thread:
        return ""  # the first line names it
    return what_happened(found) if found is not None else "nothing was explained"


def _head(verdict: BundleVerdict) -> str:
    return title(verdict) if verdict.crash is not None else f"{title(verdict)}, {_when(verdict)}"


def _when(verdict: BundleVerdict) -> str:
    at = clock_time(verdict.at)
    return f"attempt {verdict.attempt}, {at}" if verdict.attempt else at


def _since(verdict: BundleVerdict) -> str:
    since = [_when(verdict)] if verdict.crash is not None else []
    since += [f"no progress for {verdict.beat_age_s:.0f} s"] if verdict.beat_age_s else []
    since += [f"in phase {verdict.phase}"] if verdict.phase not in (None, "unknown") else []
    end = verdict.exit
    since += [f"ended: {exit_text(end.code, end.signal)}"] if end is not None else []
    return ", ".join(since)


def _why(found: Explanation | None, verdict: BundleVerdict) -> str:
    if found is None:
        return ""
    told = verdict.crash is not None and verdict.crash.exception is not None
    if told:
        return because(found) if found.died is None else "likely that exception"
    return cause_words(found)


def _changes(found: Explanation | None, words: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for number, one in enumerate(found.remedies[:3] if found else (), 1):
        text = f"{number} {remedy_line(one, words)}"
        first = number == 1
        lines += _wrapped("change" if first else "", text, 2 if first else 1, indent=_INDENT)
    return lines


def _stack(found: Explanation | None, evidence: Evidence, room: int) -> list[str]:
    """The innermost frames of the odd one, with their source."""
    together = groups(evidence, found)
    frames = trimmed(together[0].frames)[: max(0, min(_FRAMES, room - 2))] if together else ()
    if not frames:
        return []
    lines = ["", _cut(f"{labels(together[0])}:")]
    for frame in frames:
        source = f"  | {frame.source.strip()}" if frame.source else ""
        lines.append(_cut(f"    {frame}{source}"))
    return lines


def _raised(verdict: BundleVerdict, room: int) -> list[str]:
    """The end of the traceback, as Python prints it."""
    raised = verdict.crash.exception if verdict.crash is not None else None
    if raised is None or room < 3:
        return []
    return ["", *map(_cut, traceback_lines(raised)[:-1][-min(2 * _FRAMES, room - 1) :])]


def _more(found: Explanation | None) -> list[str]:
    rank = found.root.who.rank if found and found.root else None
    one = "" if rank is None else f"--rank {rank}, "
    return ["", f"More: wtrain show --all (everything), {one}--raw (whole stacks)"]


def _wrapped(name: str, text: str, most: int, *, indent: int | None = None) -> list[str]:
    """`name    text`, wrapped and cut to `most` lines; no line for an empty text."""
    if not text:
        return []
    margin = indent if indent is not None else _INDENT if name else 0
    lines = textwrap.wrap(
        text,
        WIDTH - margin,
        max_lines=most,
        placeholder=" ...",
        break_long_words=True,
        break_on_hyphens=False,
    )
    first = name.ljust(margin)
    return [f"{first if at == 0 else ' ' * margin}{line}".rstrip() for at, line in enumerate(lines)]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
