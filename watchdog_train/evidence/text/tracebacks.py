"""One line of a Python traceback, or of a kernel stack. Pure, linear, total."""

from __future__ import annotations

import re
from typing import Literal

_TRACEBACK = re.compile(
    r"\s*(?:(?P<what>(?:\+ )?Exception Group |Original )|.{0,20}[╭┌]─+ )?"
    r"Traceback \(most recent call last\)(?::?\s*| ─+[╮┐])\Z"
)
"""Python's; rich's, in a box."""
_HEADLESS = re.compile(r"\s*File \"[^\"\n]{1,1000}\", line \d{1,9}, in [\w<]")
_BOXED = re.compile(r".{0,20}?│ ?(?P<text>.*?)\s*│\s*\Z")
_BOX_ENDS = re.compile(r".{0,20}?[╰└]─{4,}")
_BOXED_FRAME = re.compile(
    r"(?P<file>(?:[~/]|[A-Za-z]:)[^\n]{1,400}?):(?P<line>\d{1,7}) ?in ?(?P<name>[\w<>.]{1,80})\Z"
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


def is_headless(line: str) -> bool:
    """A frame of a traceback whose first lines were cut off."""
    return 'File "' in line and _HEADLESS.match(line) is not None


def boxed(line: str) -> str | None:
    """What stands in a line of rich's box; empty for its lower edge."""
    if "│" not in line:
        return "" if _BOX_ENDS.match(line) else None
    match = _BOXED.match(line)
    return match["text"] if match else None


def boxed_frame(text: str) -> tuple[str, str, str | None] | None:
    """Function, file and line of a frame in such a box, its lines joined."""
    match = _BOXED_FRAME.match(text)
    return (match["name"], match["file"], match["line"]) if match else None


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
    """All frames of /proc/PID/stack, innermost first, as `nfs_wait_bit_killable [nfs]`."""
    found = (_KERNEL_FRAME.match(line) for line in text.splitlines()[:64])
    return tuple(
        f"{match['name']} [{match['module']}]" if match["module"] else match["name"]
        for match in found
        if match is not None
    )
