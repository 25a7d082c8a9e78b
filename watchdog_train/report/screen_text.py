"""A bundle on one screen of 80 by 24: who is stuck, since when, why, what follows. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence
from watchdog_train.core.diagnosis.places import groups
from watchdog_train.core.diagnosis.stacks import trimmed
from watchdog_train.core.model import Explanation
from watchdog_train.report.evidence_text import captured_lines, glance, labels, silence, title
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
_MOST = {
    "": 1, "since": 1, "what": 6, "waits": 6, "why": 3, "where": 3, "then": 2, "known": 2, "on": 2
}  # fmt: skip
"""Lines of each part if there is room for all."""
_SHORTENED = ("on", "known", "where", "then", "why", "waits", "what")
"""The order in which parts lose lines if there is no room: the answer last."""
_ROOM = HEIGHT - 1 - 2
"""Lines of a screen without the prompt and the last two."""


def one_screen(
    verdict: BundleVerdict,
    found: Explanation | None,
    evidence: Evidence,
    *,
    remedy_words: Mapping[str, str] | None = None,
    machines: Sequence[str] = (),
) -> str:
    """At most 23 lines of at most 80 characters, the last one free for the prompt."""
    crash, raised = verdict.crash, verdict.crash.exception if verdict.crash is not None else None
    most, texts = dict(_MOST), {**_texts(verdict, found, evidence), "on": "; ".join(machines)}
    most[""] = 1 if crash is None else 3
    changes = _changes(found, remedy_words or {})
    while True:
        parts = [line for name, text in texts.items() for line in _wrapped(name, text, most[name])]
        name = next((name for name in _SHORTENED if most[name] > 1), None)
        if len(parts) + len(changes) <= _ROOM or name is None:
            break
        most[name] -= 1
    parts += changes
    room = _ROOM - len(parts)
    if raised is not None and room >= 3:  # the end of the traceback, as Python prints it
        stack = ["", *traceback_lines(raised)[:-1][-min(2 * _FRAMES, room - 1) :]]
    else:
        stack = _stack(found, evidence, room)
    rank = found.root.who.rank if found and found.root else None
    one = "" if rank is None else f"--rank {rank}, "
    more = f"More: wtrain show --all (everything), {one}--raw (whole stacks)"
    return "\n".join([*parts[:_ROOM], *map(_cut, stack), "", more])


def _texts(verdict: BundleVerdict, found: Explanation | None, evidence: Evidence) -> dict[str, str]:
    crash, end = verdict.crash, verdict.exit
    when = clock_time(verdict.at)
    when = f"attempt {verdict.attempt}, {when}" if verdict.attempt else when
    since = [when] if crash is not None else []
    since += silence(verdict)
    since += [f"ended: {exit_text(end.code, end.signal)}"] if end is not None else []
    what = what_happened(found) if found is not None else "nothing was explained"
    why = cause_words(found) if found is not None else ""
    if found is not None and crash is not None and crash.exception is not None:
        why = because(found) if found.died is None else "likely that exception"
    dead = all(process.state in ("Z", "X") for process in evidence.processes)
    return {
        "": title(verdict) if crash is not None else f"{title(verdict)}, {when}",
        "since": ", ".join(since),
        # The first line names a crash.
        "what": what if crash is None or crash.in_thread else "",
        "waits": " ".join(more_sentences(found)) if found else "",
        "why": why,
        "where": "" if crash and dead else glance(evidence, found),
        "then": "; ".join(text.removeprefix("then ") for text in verdict.done),
        "known": "; ".join(captured_lines(verdict)),
    }


def _changes(found: Explanation | None, words: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for number, one in enumerate(found.remedies[:3] if found else (), 1):
        text = f"{number} {remedy_line(one, words)}"
        lines += _wrapped(" " if lines else "change", text, 1 if lines else 2)
    return lines


def _stack(found: Explanation | None, evidence: Evidence, room: int) -> list[str]:
    together = groups(evidence, found)
    frames = trimmed(together[0].frames)[: max(0, min(_FRAMES, room - 2))] if together else ()
    sources = [f"  | {each.source.strip()}" if each.source else "" for each in frames]
    lines = [f"    {frame}{source}" for frame, source in zip(frames, sources, strict=True)]
    return ["", f"{labels(together[0])}:", *lines] if lines else []


def _wrapped(name: str, text: str, most: int) -> list[str]:
    """`name    text`, wrapped and cut to `most` lines; no line for an empty text."""
    margin = _INDENT if name else 0
    lines = textwrap.wrap(
        text, WIDTH - margin, max_lines=most, placeholder=" ...", break_on_hyphens=False
    )
    return [f"{' ' * margin if at else name.ljust(margin)}{line}" for at, line in enumerate(lines)]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
