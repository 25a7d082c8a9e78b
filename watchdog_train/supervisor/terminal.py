"""Where the user's streams lead, and streams for a training that look the same to it.

Nothing here writes to the user's terminal or changes it: its settings are shared with the shell.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress

from watchdog_train.core.model import Value


class Terminal(Value):
    """Where the user's three streams lead."""

    stdout_is_terminal: bool
    stderr_is_terminal: bool
    same_stream: bool
    """stdout and stderr are one file."""
    give_stdin: bool
    """The training may read our standard input."""
    rows: int = 24
    columns: int = 80


def terminal_now(*, foreground: bool) -> Terminal:
    """The user's streams as they are now; a detached run has none."""
    if not foreground:
        return Terminal(
            stdout_is_terminal=False,
            stderr_is_terminal=False,
            same_stream=True,
            give_stdin=False,
        )
    on_terminal = {fd: is_terminal(fd) for fd in (1, 2)}
    sizes = [size for fd in (1, 2) if on_terminal[fd] and (size := window_size(fd))]
    rows, columns = (*sizes, (24, 80))[0]
    return Terminal(
        stdout_is_terminal=on_terminal[1],
        stderr_is_terminal=on_terminal[2],
        same_stream=same_file(1, 2),
        give_stdin=_may_read_stdin(),
        rows=rows,
        columns=columns,
    )


def window_size(fd: int) -> tuple[int, int] | None:
    """Rows and columns; None where nobody says."""
    with suppress(OSError):
        size = os.get_terminal_size(fd)
        if size.lines and size.columns:
            return size.lines, size.columns
    return None


def open_stream(terminal: Terminal | None) -> tuple[int, int]:
    """An end to read and an end to write: a pseudo-terminal like the user's, or a pipe for None."""
    if terminal is None or sys.platform == "win32":
        return os.pipe()
    try:
        master, slave = os.openpty()
    except OSError:  # no /dev/pts, or no more of them: progress bars then look as in a file
        return os.pipe()
    import termios

    attributes = termios.tcgetattr(slave)
    # What is captured goes to the user's own terminal, which turns newlines into CR LF itself.
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    set_window_size(master, terminal.rows, terminal.columns)
    return master, slave


def set_window_size(fd: int, rows: int, columns: int) -> None:
    """Tell a pseudo-terminal its size; a pipe has none."""
    if sys.platform == "win32" or not os.isatty(fd):
        return
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def is_terminal(fd: int) -> bool:
    """Whether it is open, and leads to one."""
    with suppress(OSError):
        return os.isatty(fd)
    return False


def same_file(one: int, other: int) -> bool:
    """Whether both are open, and lead to one place."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # closed by the user: `2>&-`
        return False


def _may_read_stdin() -> bool:
    """Whether fd 0 is there and ours to read.

    A job in the background of a shell would be stopped for reading the terminal. The training is
    no longer such a job, so it would take what is typed into the shell.
    """
    try:
        os.fstat(0)
        if sys.platform == "win32" or not os.isatty(0):
            return True
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # closed, or a terminal that is not our controlling one
        return False
