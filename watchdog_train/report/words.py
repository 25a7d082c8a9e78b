"""Cleaned text, durations, numbers, lists and tables for people. Decides nothing.

Text from outside, such as the output of a training, is untrusted: it goes through `clean`.
"""

from __future__ import annotations

import codecs
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal

from watchdog_train.core.model.progress import RankSpans, spans

PROCESS_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel (D)",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}

# Sequences of a terminal: CSI, OSC (title, hyperlinks; up to BEL or ST) and those of two bytes.
_ESCAPE = (
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]?|\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"
    r"|\x1b[^\x1b]?"
)
_ESCAPES = re.compile(_ESCAPE, re.DOTALL)
_FOREIGN = {
    # Kept besides printable text: lines; the styles of Paint; any colours and progress bars.
    keeps: re.compile(rf"(?P<kept>{style})|{_ESCAPE}|[^ -~\x1b{controls}]+", re.DOTALL)
    for keeps, style, controls in (
        ("nothing", "(?!)", ""),
        ("lines", "(?!)", r"\n\t"),
        ("styles", r"\x1b\[(?:[012]|3[1-3])m", r"\n\t"),
        ("bars", r"\x1b\[[0-9;:]{0,32}m", r"\n\t\r"),
    )
}
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,4096})?\Z")
_CUT = "…"

Style = Literal["good", "bad", "warn", "strong", "dim"]


STYLES: dict[Style, dict[str, Any]] = {
    "good": {"fg": "green", "bold": True},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow", "bold": True},
    "strong": {"bold": True},
    "dim": {"dim": True},
}


class Paint:
    """Colours for a terminal that wants them, none elsewhere."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled

    def __call__(self, text: str, style: Style) -> str:
        if not self.enabled or not text:
            return text
        import click

        return click.style(text, **STYLES[style])


PLAIN = Paint(enabled=False)


def safe(text: str, keeps: Literal["nothing", "lines", "styles", "bars"] = "lines") -> str:
    """Text from outside without the characters and sequences that a terminal obeys."""
    return _FOREIGN[keeps].sub(_harmless, text)


def _harmless(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] == "\x1b":
        return match["kept"] or ""
    # Cc, Cf (bidirectional overrides, zero width), Cs, Co, Zl and Zp can all move a terminal.
    return "".join(
        each if each.isprintable() else (" " if each.isspace() else "") for each in found
    )


class SafeOutput:
    """Output of a training for a terminal, in pieces; colours and progress bars are kept."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""

    def __call__(self, data: bytes) -> bytes:
        """The piece without control sequences; an unfinished one is kept for the next piece."""
        text = self._held + self._decode(data)
        begun = _UNFINISHED.search(text, max(0, text.rfind("\x1b")))
        cut_at = begun.start() if begun is not None else len(text)
        self._held = text[cut_at:]
        return safe(text[:cut_at], "bars").encode()


def clean(text: str, cap: int = 500) -> str:
    """One line of untrusted text: no control, format or bidirectional characters, bounded."""
    text = safe(text[: 4 * cap + 4096], "nothing").strip()
    return text if len(text) <= cap else text[: cap - 1] + _CUT


def cut_bytes(text: str, cap_bytes: int) -> str:
    """The text, cut to this length in UTF-8, with a mark at the cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= cap_bytes:
        return data.decode("utf-8")
    mark = _CUT.encode("utf-8")
    return data[: cap_bytes - len(mark)].decode("utf-8", "ignore") + _CUT


def display_width(text: str) -> int:
    """Columns in a terminal: wide characters count two, combining ones and colours none."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int | None) -> str:
    """The line cut to a number of columns; None: not cut. A colour sequence is never cut."""
    if width is None or display_width(text) <= width:
        return text
    used, kept, at = 1, [], 0
    while at < len(text):
        escape = _ESCAPES.match(text, at)
        if escape is not None:
            kept.append(escape[0])
            at = escape.end()
            continue
        used += _columns(text[at])
        if used > width:
            break
        kept.append(text[at])
        at += 1
    return "".join(kept).rstrip() + _CUT + ("\x1b[0m" if "\x1b" in text else "")


def pad(text: str, width: int) -> str:
    """The text, filled with spaces to a number of columns."""
    return text + " " * max(0, width - display_width(text))


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table: each column but the last is as wide as its widest cell."""
    wide = [max(map(display_width, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join([*map(pad, row[:-1], wide), row[-1]]).rstrip() for row in rows]


def wrap(text: str, width: int | None) -> tuple[str, ...]:
    """Lines broken at spaces; a word longer than a line is not broken, so it can be copied."""
    if width is None or display_width(text) <= width:
        return (text,)
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and display_width(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return (*lines, line)


def duration(seconds: float | None) -> str:
    """`0.4 s`, `5 s`, `14 s`, `3 min 20 s`, `2 h 14 min`, `3 d 4 h`."""
    if seconds is None:
        return "unknown"
    seconds = max(0.0, seconds)
    if seconds < 9.95 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    rest, small = round(seconds), "s"
    for unit, size, limit in (("min", 60, 60), ("h", 60, 24), ("d", 24, 0)):
        count, part = divmod(rest, size)
        if not count:
            break
        if count < limit or not limit:
            return f"{count} {unit} {part} {small}" if part else f"{count} {unit}"
        rest, small = count, unit
    return f"{rest} {small}"


def rough_duration(seconds: float) -> str:
    """An estimate: `40 s`, `12 min`, `2 h 10 min`."""
    if seconds < 90.0:
        return f"{max(1, round(seconds / 5.0)) * 5} s"
    minutes = round(seconds / 60.0)
    if minutes >= 60:
        minutes = round(minutes / 5) * 5
    return duration(60.0 * minutes)


def pace(per_s: float) -> str:
    """`3.1 steps/s`, and for slow steps `12 s a step`."""
    return f"{per_s:.3g} steps/s" if per_s >= 1.0 else f"{duration(1.0 / per_s)} a step"


def number(value: float) -> str:
    """`1,240`, `34.1`, `2.3e-05`."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def count(amount: int, noun: str) -> str:
    """`1 restart`, `2 restarts`, `2 processes`, `2 crashes`."""
    if amount == 1:
        return f"1 {noun}"
    return f"{number(amount)} {noun}{'es' if noun.endswith(('s', 'sh', 'ch', 'x')) else 's'}"


def times(amount: int) -> str:
    """`once`, `2 times`."""
    return "once" if amount == 1 else f"{amount} times"


def labelled(label: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Rows of a table, the first of which has the label."""
    return [("" if i else label, text) for i, text in enumerate(texts)]


def listed(items: Sequence[str], cap: int = 6) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 9 more`."""
    shown = list(items[:cap])
    if len(items) > cap:
        shown.append(f"{len(items) - cap} more")
    if len(shown) < 2:
        return "".join(shown)
    return ", ".join(shown[:-1]) + " and " + shown[-1]


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 0-3 and 7`."""
    return spans_text(spans(set(ranks)))


def spans_text(ranks: RankSpans) -> str:
    """The same, of spans."""
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranks]
    if not texts:
        return "the job"
    return f"{'rank' if len(texts) == 1 and '-' not in texts[0] else 'ranks'} {listed(texts)}"


def clock_time(unix_s: float, *, now: float | None = None) -> str:
    """`23:10:05` in the zone of this machine, with the date unless that is today's."""
    try:
        moment = datetime.fromtimestamp(unix_s)  # noqa: DTZ006 - local time, for people
        today = None if now is None else datetime.fromtimestamp(now)  # noqa: DTZ006
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    if today is not None and moment.date() == today.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def precise_clock(unix_s: float) -> str:
    """`23:10:05.123`."""
    text = clock_time(int(unix_s), now=unix_s)
    return f"{text}.{int(unix_s * 1000) % 1000:03d}"


def state_word(state: str | None) -> str:
    return "state unknown" if state is None else PROCESS_STATES.get(state, clean(state, 20))


def command_text(argv: Iterable[str], cap: int = 2000) -> str:
    return clean(shlex.join([clean(argument, cap) for argument in argv]), cap)


def command_title(argv: Sequence[str]) -> str:
    """A command line for a headline: the program without its directory."""
    if not argv:
        return "no command recorded"
    return command_text([last_part(argv[0]), *argv[1:]], 300)


def short_path(path: str, base: str) -> str:
    """The cleaned path, relative to base if it is below it."""
    pure = PurePath(path)
    if base and pure.is_absolute() and pure.is_relative_to(base) and path != base:
        return clean(str(pure.relative_to(base)), 1000)
    return clean(path, 1000)


def percent_text(percent: float) -> str:
    """Rounded down, because 100 % means finished."""
    return f"{int(percent)} %"


def size_text(amount_bytes: int) -> str:
    """Bytes for people: 512 B, 1.5 KiB, 2.0 GiB."""
    value = float(amount_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def last_part(path: str) -> str:
    return clean(PurePath(path).name or path, 200)
