"""One line of ours at the bottom of the user's terminal, only while it cannot disturb anybody.

It must leave no trace: it is drawn on an empty line, without a newline, and erased before the
next byte of the training. It is not drawn while the training writes, in the middle of a line, or
when the training itself draws: progress bars, live displays, full screens.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress

from watchdog_train.report.words import cut
from watchdog_train.supervisor.outlet import Outlet, in_foreground

CALM_S = 1.0
"""Nothing was written for so long: whoever writes more often shows by itself that it goes on."""
DRAWING_S = 10.0
"""After a carriage return or a movement of the cursor the training counts as one that draws."""
AGAIN_S = 1.0
LEAST_COLUMNS = 30
SPLIT_BYTES = 16
"""Longest sequence that is looked for, and that may come in two pieces."""
RECENT_BYTES = 8192
"""Of a large block only the end says how the screen is left."""

ERASE = b"\r\x1b[K"
ERASE_TO_END = b"\r\x1b[J"
"""A terminal that was made narrower has wrapped the line."""

_COLOUR = re.compile(rb"\x1b\[([0-9;:]*)m")
_HARMLESS = rb"\[[0-9;:]*m|\]8;[^\x07\x1b]*(?:\x07|\x1b\\)"  # colours, and links
_MOVES = re.compile(rb"\r(?!\n)|[\b\v\f]|\x1b(?!" + _HARMLESS + rb")")
_MODES = re.compile(rb"\x1b\[\?(25|47|1047|1049)([hl])")
_CURSOR = b"25"
_CONTROLS = (b"\r", b"\x1b", b"\b", b"\v", b"\f")


class TrainingScreen:
    """What the training's output does to the screen, as far as that matters here."""

    def __init__(self) -> None:
        self.is_plain = True
        """No colour of the training is in effect."""
        self._written_at = self._drew_at = -DRAWING_S
        self._modes: set[bytes] = set()
        self._end = b""

    def wrote(self, data: bytes, now: float) -> None:
        """The training has written something."""
        self._written_at = now
        recent = (self._end + data)[-RECENT_BYTES:]
        self._end = data[-SPLIT_BYTES:]
        if not any(control in recent for control in _CONTROLS):
            return
        if _MOVES.search(recent):
            self._drew_at = now
        for mode, switch in _MODES.findall(recent):
            # Away: a hidden cursor, or another screen.
            away = (switch == b"l") == (mode == _CURSOR)
            self._modes.add(mode) if away else self._modes.discard(mode)
        colours = _COLOUR.findall(recent)
        if colours:
            self.is_plain = colours[-1] in (b"", b"0", b"00")

    def is_calm(self, now: float) -> bool:
        """Whether nobody writes or draws."""
        calm = now - self._written_at >= CALM_S and now - self._drew_at >= DRAWING_S
        return calm and not self._modes


class StatusLine:
    """The line, on one outlet."""

    def __init__(self, outlet: Outlet, *, enabled: bool, colour: bool) -> None:
        self.is_possible = enabled
        self.screen = TrainingScreen()
        self._outlet = outlet
        self._colour = colour
        self._shown: str | None = None
        self._drawn_at = -AGAIN_S

    def show(self, text: str | None, *, now: float, said_at: float) -> None:
        """Draw this text, if it may be there now; None: nothing.

        Args:
            text: one line, without our own colours.
            now: monotonic seconds.
            said_at: when a line of ours was written last.
        """
        outlet = self._outlet
        if text is None or not self.is_possible:
            self.hide()
            return
        calm = self.screen.is_calm(now) and now - said_at >= CALM_S
        if not calm or not outlet.at_line_start or not outlet.is_empty():
            return
        columns = _columns(outlet.fd) if in_foreground(outlet.fd) else None
        if columns is None or columns < LEAST_COLUMNS:
            return
        line = cut(text, columns - 1)
        if line == self._shown or now - self._drawn_at < AGAIN_S:
            return
        # A colour that the training has set must be the same after us.
        plain = self._colour and self.screen.is_plain
        painted = f"\x1b[2m{line}\x1b[0m" if plain else line
        # The cursor waits at the beginning: what is typed, and ^C, is erased with the line.
        outlet.put(f"\r{painted}\x1b[K\r".encode(), stays=False)
        self._shown, self._drawn_at = line, now

    def make_way(self, data: bytes, now: float) -> bytes:
        """What the training has written, after what erases the line."""
        if not self.is_possible:
            return data
        self.screen.wrote(data, now)
        return self.take_away() + data

    def hide(self, *, resized: bool = False) -> None:
        """Leave the line as it was found."""
        if self._shown is not None:
            self._outlet.put(self.take_away(resized=resized), stays=False)

    def clear(self) -> None:
        """Empty the line, if it is ours or nobody's."""
        if self.is_possible and self._outlet.at_line_start:
            self._shown = None
            self._outlet.put(ERASE, stays=False)

    def take_away(self, *, resized: bool = False) -> bytes:
        """What erases the line, for whoever writes next; nothing when there is none."""
        if self._shown is None:
            return b""
        self._shown = None
        return ERASE_TO_END if resized else ERASE


def can_be_drawn(environ: Mapping[str, str], *, stdout_fd: int, stderr_fd: int) -> bool:
    """Whether stderr is a terminal that can erase a line, and nobody but us writes to it.

    Where stdout goes into a pipe, its reader may write to the same terminal (`| tee log`).
    """
    if sys.platform == "win32" or environ.get("TERM", "") in ("", "dumb"):
        return False
    if any(environ.get(name) for name in ("JPY_PARENT_PID", "COLAB_RELEASE_TAG")):
        return False  # a cell of a notebook keeps what was erased
    try:
        stdout, stderr = os.fstat(stdout_fd), os.fstat(stderr_fd)
    except OSError:
        return False
    if not os.isatty(stderr_fd):
        return False
    elsewhere = stat.S_ISREG(stdout.st_mode) or os.path.samestat(stdout, os.stat(os.devnull))
    return elsewhere or os.path.samestat(stdout, stderr)


def _columns(fd: int) -> int | None:
    with suppress(OSError):
        return os.get_terminal_size(fd).columns
    return None
