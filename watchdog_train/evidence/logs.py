"""The end of log files, bounded in bytes and lines whatever their size; secrets removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from watchdog_train.core.diagnosis.facts import LogText
from watchdog_train.evidence.redact import redact_text
from watchdog_train.report.words import safe
from watchdog_train.trusted_files import read_regular

TAIL_BYTES = 256 * 1024
TAIL_LINES = 500
"""A bundle is often read hours later, without the terminal."""
LINE_CAP = 2000
_READ_CAP = 4 * LINE_CAP
"""A truncated secret is not recognised: remove secrets first, then cut."""
_KEY_LINES = 60
"""Extra lines before the wanted ones: a private key may begin there."""


def tail(path: str, lines: int) -> LogText | None:
    """The last lines of a regular file; None if it cannot be read.

    A progress bar redraws with carriage returns: each state counts as a line.
    """
    found = read_regular(path, TAIL_BYTES, from_end=True)
    if found is None:
        return None
    content, size = found
    if size > TAIL_BYTES:
        content = content.partition(b"\n")[2] or content
    text = content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    written = [line for line in text.split("\n") if line.strip()][-lines - _KEY_LINES :]
    wanted = clean_lines(written)[-lines:] if lines else ()
    return LogText(source=os.path.basename(path), lines=wanted)


def clean_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Untrusted output: no terminal sequences, no secrets, no line longer than the cap."""
    if not lines:
        return ()
    plain = (safe(line[:_READ_CAP]) for line in lines)
    return tuple(line[:LINE_CAP] for line in redact_text("\n".join(plain)).split("\n"))


def clean_line(line: str) -> str:
    return clean_lines([line.replace("\n", " ")])[0]


def tails(paths: Iterable[str], lines: int) -> tuple[LogText, ...]:
    found = (tail(path, lines) for path in paths)
    return tuple(log for log in found if log is not None and log.lines)
