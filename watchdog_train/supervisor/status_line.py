"""A status line at the bottom of the user's terminal, drawn only while it disturbs no output.

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
from typing import TYPE_CHECKING

from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.notices.poll_events import run_progress
from watchdog_train.core.policy import Output
from watchdog_train.report.summary import PREFIX, progress_line, status_line
from watchdog_train.report.words import cut
from watchdog_train.supervisor.terminal import Outlet, in_foreground, window_size

if TYPE_CHECKING:
    from watchdog_train.supervisor.display import Display

CALM_S = 1.0
"""Without output for this long the line is drawn: faster output shows progress already."""
DRAWING_S = 10.0
"""After a carriage return or a cursor movement the training counts as drawing."""
AGAIN_S = 1.0
LEAST_COLUMNS = 30
SPLIT_BYTES = 16
"""Longest sequence that is recognised, also when it comes in two pieces."""
RECENT_BYTES = 8192
"""Of a large block only the end decides the state of the screen."""

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
    """The state in which the training's output leaves the screen."""

    def __init__(self) -> None:
        self.is_plain = True
        """No colour of the training is in effect."""
        self._written_at = self._drew_at = -DRAWING_S
        self._modes: set[bytes] = set()
        self._end = b""

    def wrote(self, data: bytes, now: float) -> None:
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
        calm = now - self._written_at >= CALM_S and now - self._drew_at >= DRAWING_S
        return calm and not self._modes


class StatusLine:
    def __init__(self, outlet: Outlet, *, enabled: bool, colour: bool) -> None:
        self.is_possible = enabled
        self.screen = TrainingScreen()
        self._outlet = outlet
        self._colour = colour
        self._shown: str | None = None
        self._drawn_at = -AGAIN_S

    def show(self, text: str | None, *, now: float, said_at: float) -> None:
        """Draw one line without colours of its own, if it may be there now; None: nothing.

        `said_at`: when a line of wtrain was last written.
        """
        outlet = self._outlet
        if text is None or not self.is_possible:
            self.hide()
            return
        calm = self.screen.is_calm(now) and now - said_at >= CALM_S
        if not calm or not outlet.at_line_start or not outlet.is_empty():
            return
        size = window_size(outlet.fd) if in_foreground(outlet.fd) else None
        if size is None or size[1] < LEAST_COLUMNS:
            return
        line = cut(text, size[1] - 1)
        if line == self._shown or now - self._drawn_at < AGAIN_S:
            return
        # A colour that the training has set must be the same after us.
        plain = self._colour and self.screen.is_plain
        painted = f"\x1b[2m{line}\x1b[0m" if plain else line
        # The cursor waits at the beginning: what is typed, and ^C, is erased with the line.
        outlet.put(f"\r{painted}\x1b[K\r".encode(), stays=False)
        self._shown, self._drawn_at = line, now

    def make_way(self, data: bytes, now: float) -> bytes:
        """The sequence that erases the line, then the training's output."""
        if not self.is_possible:
            return data
        self.screen.wrote(data, now)
        return self.take_away() + data

    def hide(self, *, resized: bool = False) -> None:
        if self._shown is not None:
            self._outlet.put(self.take_away(resized=resized), stays=False)

    def clear(self) -> None:
        """Erase the line, unless the training is writing on it."""
        if self.is_possible and self._outlet.at_line_start:
            self._shown = None
            self._outlet.put(ERASE, stays=False)

    def take_away(self, *, resized: bool = False) -> bytes:
        """The sequence that erases the line; empty if there is none."""
        if self._shown is None:
            return b""
        self._shown = None
        return ERASE_TO_END if resized else ERASE


def can_be_drawn(environ: Mapping[str, str], *, stdout_fd: int, stderr_fd: int) -> bool:
    """Whether stderr is a terminal that can erase a line, and only wtrain writes to it.

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


LINE_EVERY_S = 0.5
WAIT_FOR_LINE_END_S = 30.0
"""Maximum wait of a plain line for the end of a line of the training."""


class ProgressLine:
    """Shows the progress in the status line, or now and then in a plain line.

    Must not show what is an event: those have lines of their own.
    """

    def __init__(self, policy: Output, display: Display) -> None:
        self._policy = policy
        self._display = display
        self._line_at = 0.0
        self._told_at: float | None = None
        self._told_step: int | None = None

    def tell(self, state: State, observation: Observation) -> None:
        """Update the status line, or print a plain line if it is time."""
        policy, display = self._policy, self._display
        if policy.quiet or policy.progress_line_s is None:
            return
        if display.has_status_line:
            if observation.now - self._line_at >= LINE_EVERY_S:
                self._line_at = observation.now
                progress = run_progress(observation.sample, state, observation.steps_s)
                display.show_status(status_line(state, observation, progress))
        else:
            self._say(state, observation, policy.progress_line_s)

    def _say(self, state: State, observation: Observation, every_s: float) -> None:
        now = observation.now
        if self._told_at is None or state.state != "running":
            self._told_at = now if self._told_at is None else self._told_at
            return
        late_s = now - self._told_at - every_s
        if late_s < 0 or (late_s < WAIT_FOR_LINE_END_S and not self._display.is_between_lines):
            return
        self._told_at = now
        progress = run_progress(observation.sample, state, observation.steps_s)
        line = progress_line(progress)
        # The same step as before is a silence, and that has words of its own.
        if line is not None and progress.step != self._told_step:
            self._told_step = progress.step
            self._display.say(PREFIX + line)
