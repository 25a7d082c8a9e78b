"""Shows the training's captured output, and our own lines, on the user's terminal.

It must never block its caller, never change the terminal's settings, and never write into a line
of the training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.supervisor.outlet import Outlet
from watchdog_train.supervisor.status_line import StatusLine, can_be_drawn
from watchdog_train.supervisor.tail import Tail

DRAIN_STEP_S = 0.02
LEAVE_S = 0.5


class Display:
    """The user's stdout and stderr, as long as somebody reads them."""

    def __init__(self, stdout_fd: int = 1, stderr_fd: int = 2) -> None:
        self._stderr = Outlet(stderr_fd)
        self._stdout = self._stderr if _same_file(stdout_fd, stderr_fd) else Outlet(stdout_fd)
        self._tails: list[tuple[Tail, Outlet]] = []
        self.stderr_is_terminal = _is_terminal(stderr_fd)
        self.colour = wants_colour(os.environ, is_terminal=self.stderr_is_terminal)
        possible = can_be_drawn(os.environ, stdout_fd=stdout_fd, stderr_fd=stderr_fd)
        self._line = StatusLine(self._stderr, enabled=possible, colour=self.colour)
        self._said_at = 0.0

    def follow(self, streams: Mapping[str, Path], *, from_end: bool = False) -> None:
        """Show these capture files from now on instead of those before.

        Args:
            streams: by stream: output, or stdout and stderr.
            from_end: only what is still to come in the files that are there.
        """
        for tail, _ in self._tails:
            tail.close()
        self._tails = [
            (Tail(path, from_end=from_end and path.exists()), self._outlet_of(name))
            for name, path in streams.items()
        ]

    def show(self, stream: str, data: bytes) -> None:
        """What a stream of the training had before it was followed."""
        self._outlet_of(stream).put(data)

    def _outlet_of(self, stream: str) -> Outlet:
        return self._stderr if stream == "stderr" else self._stdout

    @property
    def is_left(self) -> bool:
        """Whether nobody reads what is shown any more."""
        return self._stdout.is_dead or self._stderr.is_dead

    def pump(self) -> bool:
        """Pass on what is new, as much as the terminal takes; whether there was anything."""
        moved = False
        for tail, outlet in self._tails:
            tail.look()
            skipped = tail.skipped_bytes()
            if skipped:
                size = f"{skipped / 1e6:,.1f} MB"
                self.say(f"wtrain: {size} of output came faster than it could be shown here")
            while data := tail.read(outlet.room_bytes()):
                on_line = outlet is self._stderr
                outlet.put(self._line.make_way(data, time.monotonic()) if on_line else data)
                moved = True
        return moved

    def say(self, text: str) -> None:
        """A line of our own on stderr, never in the middle of a line of the training."""
        begin = b"" if self._stderr.at_line_start else b"\n"
        line = f"{text}\n".encode("utf-8", "replace")
        self._stderr.put(self._line.take_away() + begin + line)
        self._said_at = time.monotonic()

    @property
    def is_between_lines(self) -> bool:
        """Whether a line of ours would not break one of the training."""
        return self._stderr.at_line_start

    @property
    def has_status_line(self) -> bool:
        """Whether there is a terminal for it; not whether it may be drawn at this moment."""
        return self._line.is_possible

    def show_status(self, text: str | None) -> None:
        """Keep this line at the bottom of the terminal, whenever it disturbs nobody."""
        self._line.show(text, now=time.monotonic(), said_at=self._said_at)

    def resized(self) -> None:
        """The terminal has another size: what was drawn may have been wrapped."""
        self._line.hide(resized=True)

    def key_pressed(self) -> None:
        """The terminal has shown ^C or the like; on a line of its own it need not stay."""
        self._line.clear()

    def leave_for_now(self) -> None:
        """The shell takes the terminal back (Ctrl-Z): nothing of ours stays on its line."""
        self._line.hide()
        self._stderr.wait_empty(LEAVE_S)

    def leave_terminal(self) -> None:
        """The terminal is gone (SIGHUP); a file or pipe is still written."""
        self._line.is_possible = self._line.is_possible and not self.stderr_is_terminal
        for outlet in (self._stdout, self._stderr):
            if _is_terminal(outlet.fd):
                outlet.stop()

    def drain(self, deadline: float) -> bool:
        """Show all that the files have now; False when the deadline (monotonic) came first."""
        outlets = (self._stdout, self._stderr)
        self._line.hide()
        while True:
            moved = self.pump()
            left_s = deadline - time.monotonic()
            if not moved and all(outlet.is_empty() for outlet in outlets):
                return True
            if left_s <= 0:
                return False
            for outlet in outlets:
                outlet.wait_empty(min(left_s, DRAIN_STEP_S))

    def close(self) -> None:
        """Let go of the files; what waits for a terminal is left to its thread."""
        self.follow({})


def wants_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """NO_COLOR, then FORCE_COLOR, then whether a terminal that can is there."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM", "") != "dumb"


def _is_terminal(fd: int) -> bool:
    with suppress(OSError):
        return os.isatty(fd)
    return False


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
