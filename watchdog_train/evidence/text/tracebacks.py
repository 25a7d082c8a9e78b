"""One line of a Python traceback, or of a kernel stack. Pure, linear, total."""

from __future__ import annotations

import re
from typing import Literal

_TRACEBACK = re.compile(
    r"\s*(?P<what>(?:\+ )?Exception Group |Original )?Traceback \(most recent call last\):?\s*\Z"
)
_SYNTAX_ERROR = re.compile(r"  File \"[^\"\n]{1,1000}\", line \d{1,9}\Z")
_GROUP_LINE = re.compile(
    r"\s{1,80}(?:\| ?|\+[+-]*-{3,} ?(?P<leaf>\d{1,5})? ?-*)(?P<rest>.*)\Z", re.DOTALL
)
Follows = Literal["original", "cause", "context", "sibling"]
"""How a traceback belongs to the one before it in the text. original: it is what that one carries,
from a worker or a group; cause, context: that one led to it; sibling: one more of a group."""
_LINKS: tuple[tuple[str, Follows], ...] = (
    ("The above exception was the direct cause of the following exception:", "cause"),
    ("During handling of the above exception, another exception occurred:", "context"),
    ("terminated with the following error:", "original"),
)
_THREAD_OF_TRACEBACK = re.compile(
    r"Exception in thread (?P<thread>[^:\n]{1,100}):|Process (?P<process>[\w:-]{1,60}):\s*\Z|"
    r"Exception ignored in: (?P<ignored>.{1,300})"
)
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?::\s?(?P<message>.*))?\s*\Z"
)


def starts_traceback(line: str) -> re.Match[str] | None:
    """Whether a Python traceback, innermost frame last, follows; group what: of which kind."""
    return _TRACEBACK.match(line) if "Traceback" in line else None


def is_syntax_error(line: str) -> bool:
    """Whether it begins the report of a SyntaxError in the script itself, which has no head."""
    return line.startswith("  File") and _SYNTAX_ERROR.match(line) is not None


def group_line(line: str) -> re.Match[str] | None:
    """A line of an exception group's traceback; groups leaf (which one begins), rest."""
    return _GROUP_LINE.match(line)


def link(line: str) -> Follows | None:
    """What a line between two tracebacks says of them."""
    return next((follows for words, follows in _LINKS if words in line), None)


def traceback_owner(line: str) -> re.Match[str] | None:
    """Which thread or process the next traceback is of; groups thread, process, ignored."""
    return _THREAD_OF_TRACEBACK.match(line)


def raised(line: str) -> tuple[str, str] | None:
    """Type and message of the exception that ends a traceback."""
    match = _RAISED.match(line)
    return (match["type"], match["message"] or "") if match else None


_KERNEL_FRAME = re.compile(
    r"\s*(?:\[<[0-9a-fA-F]{1,16}>\]\s+|\?\s+)?(?P<name>[A-Za-z_][\w.]{2,100})\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?"
    r"(?: \[(?P<module>\w{1,40})\])?\s*\Z"
)


def kernel_frames(text: str) -> tuple[str, ...]:
    """All frames of /proc/PID/stack, innermost first."""
    return tuple(frame for line in text.splitlines()[:64] if (frame := kernel_frame(line)))


def kernel_frame(line: str) -> str | None:
    """`nfs_wait_bit_killable [nfs]`, of /proc/PID/stack or of the kernel log."""
    if "+0x" not in line:
        return None
    match = _KERNEL_FRAME.match(line)
    if match is None:
        return None
    return f"{match['name']} [{match['module']}]" if match["module"] else match["name"]
