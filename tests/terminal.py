"""A terminal for tests: what a person sees after some bytes, and a pseudo-terminal with a command.

The emulator knows what progress bars and our status line use, and refuses everything else.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support import STARTED, scenario_environment, wait_until

_TOKEN = re.compile(
    r"\x1b\[(?P<private>\??)(?P<parameters>[0-9;]*)(?P<final>[A-Za-z])|(?P<control>[\x00-\x1f])"
    r"|(?P<text>[^\x00-\x1f\x1b]+)",
)


class Screen:
    """Cells of text with their colours, without a lower end."""

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        self.rows: list[list[tuple[str, str]]] = [[]]
        self.row = self.column = 0
        self.colour = ""
        self.pending = ""

    def feed(self, data: bytes) -> Screen:
        """Take some bytes as a terminal does that adds CR to LF."""
        text = self.pending + data.decode("utf-8", "replace")
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                break
            at = match.end()
            if match["text"]:
                for character in match["text"]:
                    self._put(character)
            elif match["control"]:
                self._control(match["control"])
            else:
                self._sequence(match["private"], match["parameters"], match["final"])
        self.pending = text[at:]
        assert len(self.pending) < 32, f"not understood: {self.pending[:40]!r}"
        return self

    @property
    def lines(self) -> list[str]:
        """The text, without spaces at the ends of lines and without empty lines at the end."""
        found = ["".join(cell[0] for cell in row).rstrip() for row in self.rows]
        while found and not found[-1]:
            found.pop()
        return found

    @property
    def last(self) -> str:
        """The lowest line with something in it."""
        return self.lines[-1] if self.lines else ""

    @property
    def coloured(self) -> list[list[tuple[str, str]]]:
        """The cells that hold more than a space without a colour."""
        rows = [list(row) for row in self.rows]
        for row in rows:
            while row and row[-1][0] == " ":
                row.pop()
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _put(self, character: str) -> None:
        if self.column >= self.columns:
            self.column = 0
            self._down()
        row = self.rows[self.row]
        row.extend([(" ", "")] * (self.column + 1 - len(row)))
        row[self.column] = (character, self.colour)
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _control(self, character: str) -> None:
        if character == "\n":
            self.column = 0
            self._down()
        elif character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)

    def _sequence(self, private: str, parameters: str, final: str) -> None:
        number = int(parameters) if parameters.isdigit() else 0
        if private or final in "hl":
            return
        if final == "m":
            self.colour = "" if parameters in ("", "0") else parameters
        elif final == "A":
            self.row = max(0, self.row - max(number, 1))
        elif final == "K":
            whole = number == 2
            del self.rows[self.row][0 if whole else self.column :]
        elif final == "J":
            del self.rows[self.row][self.column :]
            del self.rows[self.row + 1 :]
        elif not final.islower():  # a training's cut-off sequence and the next word end so
            raise AssertionError(f"not understood: {final!r}")


class TerminalCommand:
    """A command on a pseudo-terminal that is its own, as a shell gives it to a foreground job."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        *,
        env: Mapping[str, str] | None = None,
        columns: int = 80,
    ) -> None:
        cwd.mkdir(parents=True, exist_ok=True)
        self.cwd = cwd
        self.bytes = b""
        self.master, slave = pty.openpty()
        self.resize(24, columns)
        full = scenario_environment(cwd, {"TERM": "xterm-256color", **(env or {})})
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
            if name not in (env or {}):
                full.pop(name, None)
        self.process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=full,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - one thread when it runs
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        STARTED.append(self.process)

    def resize(self, rows: int, columns: int) -> None:
        """Another window size, as a window manager makes it."""
        self.columns = columns
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        """Everything that was written until now."""
        while self.master >= 0 and select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # EIO: nobody has it open any more
                break
            if not data:
                break
            self.bytes += data
        return self.bytes

    def type(self, text: str) -> None:
        """Keys, as a person presses them."""
        os.write(self.master, text.encode())

    @property
    def screen(self) -> Screen:
        """What a person sees now; the terminal's own CR before LF changes nothing."""
        return Screen(self.columns).feed(self.read())

    def wait_for(self, what: str | Callable[[Screen], bool], timeout_s: float = 60.0) -> Screen:
        """Until this text is on the screen, or this is true of it."""

        def look() -> Screen | None:
            screen = self.screen
            found = what in "\n".join(screen.lines) if isinstance(what, str) else what(screen)
            return screen if found else None

        try:
            return wait_until(look, timeout_s, f"on the screen: {what}", poll_s=0.05)
        except AssertionError as error:
            shown = "\n".join(self.screen.lines)
            raise AssertionError(f"{error}\n--- the screen\n{shown}") from None

    def end(self, timeout_s: float = 60.0) -> int:
        """The exit code; what was written last is read before the terminal is closed."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            raise AssertionError("still running:\n" + "\n".join(self.screen.lines))
        self.read()
        self.hang_up()
        return self.process.returncode

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self.master)
        self.master = -1


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
