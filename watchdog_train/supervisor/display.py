"""Shows the training's captured output, and our own lines, on the user's terminal.

It must never block its caller while training runs, never change the terminal's settings, and never
write into a line of the training. Only a terminal may be shown less than everything.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.report.words import SafeOutput, safe, size_text
from watchdog_train.supervisor.status_line import StatusLine, can_be_drawn
from watchdog_train.supervisor.terminal import Outlet, same_file
from watchdog_train.trusted_files import open_regular

READ_BYTES = 256 * 1024
MOST_FILES = 4
"""Kept open for a slow reader: an open file keeps its room on the disk."""


class Tail:
    """Reads a capture file from where it last stopped, across its rotation.

    A file that is rotated away is kept open until it has been read; only of a reader that is
    several files behind the oldest is given up, and counted. Behind a gate none is: the keeper
    rotates no file away that has not been begun here, so it is at most two files ahead.
    """

    def __init__(self, path: Path, *, from_end: bool, gate: int = -1) -> None:
        """`gate`: a pipe to the keeper's; it is closed with the tail."""
        self.path = path
        self._gate = gate
        self._open_gate()  # nothing is rotated away when the second file is begun
        self._rotated = path.with_name(path.name + ".1")
        self._files: deque[int] = deque()
        self._from_end = from_end
        self._skipped_bytes = 0

    def look(self) -> None:
        """Open files that were begun since; to be called more often than they rotate."""
        with suppress(OSError):
            self._take_hold()
        while len(self._files) > MOST_FILES:
            oldest = self._files.popleft()
            self._skipped_bytes += os.fstat(oldest).st_size - os.lseek(oldest, 0, os.SEEK_CUR)
            os.close(oldest)

    @property
    def has_begun(self) -> bool:
        return bool(self._files)

    @property
    def holds_back(self) -> bool:
        """Whether the keeper cannot begin another file before the present one has been read."""
        return self._gate >= 0 and len(self._files) > 2

    def read(self, limit_bytes: int) -> bytes:
        """The next bytes, `limit_bytes` at most; empty if there are none now."""
        if limit_bytes <= 0:
            return b""
        if not self._files:
            self.look()
        with suppress(OSError):
            while self._files:
                data = os.read(self._files[0], min(limit_bytes, READ_BYTES))
                if data:
                    return data
                if len(self._files) == 1:
                    self.look()
                if len(self._files) == 1:
                    return b""
                # Bytes may have been added before the next file was begun; it is final now.
                data = os.read(self._files[0], min(limit_bytes, READ_BYTES))
                if data:
                    return data
                os.close(self._files.popleft())
                self._open_gate()
        return b""

    def skipped_bytes(self) -> int:
        """Bytes given up since the last call."""
        skipped, self._skipped_bytes = self._skipped_bytes, 0
        return skipped

    def close(self) -> None:
        while self._files:
            os.close(self._files.popleft())
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def _open_gate(self) -> None:
        with suppress(OSError):  # the keeper has ended
            if self._gate >= 0:
                os.write(self._gate, b".")

    def _take_hold(self) -> None:
        known = os.fstat(self._files[-1]) if self._files else None
        newest = open_regular(self.path)
        if known is not None and os.path.samestat(known, os.fstat(newest)):
            os.close(newest)
            return
        if self._from_end:
            os.lseek(newest, 0, os.SEEK_END)
            self._from_end = False
        else:
            self._take_hold_of_rotated(known, os.fstat(newest))
        self._files.append(newest)
        if known is None:
            self._open_gate()

    def _take_hold_of_rotated(self, known: os.stat_result | None, newest: os.stat_result) -> None:
        """Open the rotated file, unless it is the known or the newest one."""
        with suppress(OSError):
            between = open_regular(self._rotated)
            rotated = os.fstat(between)
            if any(os.path.samestat(rotated, one) for one in (known, newest) if one is not None):
                os.close(between)
            else:
                self._files.append(between)


DRAIN_STEP_S = 0.02
HELD_S = 0.25
"""Maximum wait of our line for the end of the training's: a terminal passes a line and its end
in two pieces."""
LEAVE_S = 0.5
STILL_S = 600.0
"""Maximum wait after the end for a reader that takes nothing: a full pipe would block for ever,
and a job would keep its machine."""
TERMINAL_STILL_S = 2.0
SAID_S = 5.0
"""Time after the end of the training until the wait for a reader is reported."""


class _Source(msgspec.Struct):
    stream: str
    tail: Tail
    outlet: Outlet
    is_past: bool = False
    """The attempt is over: nothing more is written there."""


class Display:
    """The user's stdout and stderr, while they are read."""

    def __init__(self, stdout_fd: int = 1, stderr_fd: int = 2, *, raw: bool = True) -> None:
        """`raw`: the training's output is passed on unchanged."""
        self._stderr = Outlet(stderr_fd)
        self._stdout = self._stderr if same_file(stdout_fd, stderr_fd) else Outlet(stdout_fd)
        self._sources: list[_Source] = []
        self._safe = None if raw else {"stdout": SafeOutput(), "stderr": SafeOutput()}
        self.stderr_is_terminal = self._stderr.is_terminal
        self.colour = wants_colour(os.environ, is_terminal=self.stderr_is_terminal)
        possible = can_be_drawn(os.environ, stdout_fd=stdout_fd, stderr_fd=stderr_fd)
        self._line = StatusLine(self._stderr, enabled=possible, colour=self.colour)
        self._said_at = 0.0
        self._held = b""
        self._held_at = 0.0

    def on_room(self, call: Callable[[], None]) -> None:
        """`call` runs in another thread when a reader has taken what pump() waits for."""
        self._stdout.on_room = self._stderr.on_room = call

    def follow(
        self,
        streams: Mapping[str, Path],
        *,
        from_end: bool = False,
        gates: Mapping[str, int] | None = None,
    ) -> None:
        """Show these capture files from now on, after what is left of those before.

        `from_end`: only what is still to come in the files that are there. `gates`: see Tail.
        """
        for source in tuple(self._sources):
            source.tail.look()
            source.is_past = True
            if source.outlet.is_terminal or not source.tail.has_begun:
                self._drop(source)
        for name, path in streams.items():
            gate = (gates or {}).get(name, -1)
            tail = Tail(path, from_end=from_end and path.exists(), gate=gate)
            self._sources.append(_Source(name, tail, self._outlet_of(name)))

    @property
    def holds_back(self) -> bool:
        """Whether keeper and training may have to wait for a reader."""
        return any(source.tail.holds_back for source in self._sources)

    def _drop(self, source: _Source) -> None:
        source.tail.close()
        self._sources.remove(source)

    def show(self, stream: str, data: bytes) -> None:
        """Show output that a stream had before it was followed."""
        self._outlet_of(stream).put(self._passed_on(stream, data))

    def _passed_on(self, stream: str, data: bytes) -> bytes:
        if self._safe is None:
            return data
        return self._safe["stderr" if stream == "stderr" else "stdout"](data)

    def _outlet_of(self, stream: str) -> Outlet:
        return self._stderr if stream == "stderr" else self._stdout

    @property
    def is_left(self) -> bool:
        """Whether stdout or stderr has lost its reader."""
        return self._stdout.is_dead or self._stderr.is_dead

    def pump(self) -> bool:
        """Pass on new output, as much as is taken now; whether there was any."""
        moved = False
        behind: list[Outlet] = []
        """Outlets with more output of an earlier attempt."""
        for source in tuple(self._sources):
            tail, outlet = source.tail, source.outlet
            if outlet.is_dead:
                self._drop(source)
                if outlet.problem is not None:
                    self.say(f"wtrain: output cannot be written any more: {outlet.problem}")
                    outlet.problem = None
                continue
            tail.look()
            skipped = tail.skipped_bytes()
            if skipped:
                size = size_text(skipped)
                self.say(f"wtrain: {size} of output came faster than it could be shown here")
            at_end = False
            while outlet not in behind and (room := outlet.room_bytes()):
                data = tail.read(room)
                if not data:
                    at_end = True
                    break
                moved = True
                data = self._passed_on(source.stream, data)
                on_line = outlet is self._stderr
                outlet.put(self._line.make_way(data, time.monotonic()) if on_line else data)
            if not source.is_past:
                continue
            if at_end:
                self._drop(source)
            else:
                behind.append(outlet)
        self._release(time.monotonic() - HELD_S)
        return moved

    def say(self, text: str) -> None:
        """Write a line of wtrain on stderr, never in the middle of a line of the training."""
        now = time.monotonic()
        self._held_at = self._held_at if self._held else now
        self._held += f"{safe(text, 'styles')}\n".encode()
        self._release(now - HELD_S)

    def _release(self, held_before: float) -> None:
        """Write held lines once the training's line is complete, or has not ended since then."""
        is_between = self._stderr.at_line_start
        if self._held and (is_between or self._held_at <= held_before):
            begin = b"" if is_between else b"\n"
            self._stderr.put(self._line.take_away() + begin + self._held)
            self._held = b""
            self._said_at = time.monotonic()

    @property
    def is_between_lines(self) -> bool:
        """Whether a line of wtrain would not break one of the training."""
        return self._stderr.at_line_start

    @property
    def has_status_line(self) -> bool:
        """Whether there is a terminal for it; not whether it may be drawn at this moment."""
        return self._line.is_possible

    def show_status(self, text: str | None) -> None:
        """Keep this line at the bottom of the terminal, drawn when nothing else writes."""
        self._line.show(text, now=time.monotonic(), said_at=self._said_at)

    def resized(self) -> None:
        """The terminal has another size: the drawn line may have been wrapped."""
        self._line.hide(resized=True)

    def key_pressed(self) -> None:
        """The terminal has shown ^C or the like: erase it if nothing else is on its line."""
        self._line.clear()

    def leave_for_now(self) -> None:
        """The shell takes the terminal back (Ctrl-Z): clear our line."""
        self._line.hide()
        self._stderr.wait_empty(LEAVE_S)

    def leave_terminal(self) -> None:
        """The terminal is gone (SIGHUP); a file or pipe is still written."""
        self._line.is_possible = self._line.is_possible and not self.stderr_is_terminal
        for outlet in (self._stdout, self._stderr):
            if outlet.is_terminal:
                outlet.stop()

    def drain(self, deadline: float) -> bool:
        """Show all that the files have now; False when the deadline (monotonic) came first."""
        outlets = (self._stdout, self._stderr)
        self._line.hide()
        while True:
            was_empty = all(outlet.is_empty() for outlet in outlets)
            moved = self.pump()
            if not moved:
                was_empty = was_empty and not self._held
                self._release(math.inf)
            left_s = deadline - time.monotonic()
            if was_empty and not moved:
                return True
            if left_s <= 0:
                return False
            for outlet in outlets:
                outlet.wait_empty(min(left_s, DRAIN_STEP_S))

    def deliver(self, log: Path) -> None:
        """After the end: show the rest, as long as its readers take some of it.

        The path of `log` is printed after SAID_S, and when a reader is given up.
        """
        say_at: float | None = time.monotonic() + SAID_S
        try:
            while not self.drain(time.monotonic() + LEAVE_S):
                now = time.monotonic()
                if say_at is not None and now >= say_at and self._stderr.is_empty():
                    say_at = None
                    self.say(f"wtrain: waiting for the reader of stdout; Ctrl-C: no longer; {log}")
                self._give_up(now, log)
        except KeyboardInterrupt:
            self._give_up(math.inf, log)

    def _give_up(self, now: float, log: Path) -> None:
        """Give up readers that have taken nothing for too long."""
        for name, outlet in (("stdout", self._stdout), ("stderr", self._stderr)):
            limit_s = TERMINAL_STILL_S if outlet.is_terminal else STILL_S
            if outlet.is_empty() or now - outlet.took_at < limit_s:
                continue
            outlet.stop()
            if now < math.inf:
                what = f"the reader of {name} has taken nothing for {limit_s:.0f} s"
                self.say(f"wtrain: {what} and gets no more; logs: {log}")

    def close(self) -> None:
        """Close the files; output waiting for a terminal stays with its thread."""
        for source in tuple(self._sources):
            self._drop(source)


def wants_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """NO_COLOR, then FORCE_COLOR, then whether the terminal can show colours."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM", "") != "dumb"
