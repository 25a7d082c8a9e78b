"""The `wtrain` command: run a subcommand, and exit with its message and exit code.

Must stay light: click is imported on the first real command, a subcommand's module when it is
called, so that `wtrain --version` costs little more than starting Python.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from collections.abc import Sequence

from watchdog_train.errors import (
    EXIT_INTERRUPTED,
    EXIT_OUR_BUG,
    EXIT_REFUSED,
    EXIT_SUCCESS,
    WtrainError,
)

TYPE_CHECKING = False  # typing takes 2 ms to import
if TYPE_CHECKING:
    from typing import TextIO

    from watchdog_train.core.policy import Limits

COMPLETE = "_WTRAIN_COMPLETE"
"""Set by a shell's function that asks for completions; name and values of click."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell reports for `wtrain logs | head`."""
_CRASH_CHARACTERS = 200_000


def main(limits: Limits | None = None) -> None:
    """Entry point of the console script; a test passes limits of its own."""
    gc.set_threshold(100_000)  # importing makes much and leaves no garbage: 6 % of a start
    _open_closed_streams()
    code = run(sys.argv[1:], limits)
    _flush(sys.stdout, sys.stderr)
    # A normal exit of the interpreter takes 20 ms and is not needed: output is flushed, children
    # have sessions of their own, and the run's log is closed.
    os._exit(code)


def run(arguments: Sequence[str], limits: Limits | None = None) -> int:
    """Run one command line; every failure ends here, as words on stderr and an exit code."""
    try:
        code = _dispatch(list(arguments), limits)
        sys.stdout.flush()
    except WtrainError as error:
        _say(error.render())
        return error.exit_code
    except KeyboardInterrupt:
        _say("wtrain: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the border: a bug of ours becomes a crash file
        _say(report_crash(error, arguments))
        return EXIT_OUR_BUG
    return code


def _dispatch(arguments: list[str], limits: Limits | None) -> int:
    if arguments[:1] == ["--version"]:
        from watchdog_train import __version__

        sys.stdout.write(f"wtrain {__version__}\n")
        return EXIT_SUCCESS
    import click

    from watchdog_train.cli.group import build_group

    group = build_group()
    if (instruction := os.environ.get(COMPLETE)) is not None:
        from watchdog_train.cli.options import answer

        return answer(group, instruction)
    try:
        # Not group.main(): it ends the process itself, with 1, when stdout is closed.
        with group.make_context("wtrain", arguments or ["--help"], obj=limits) as context:
            result = group.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_REFUSED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "wtrain"
        _say(f"error: usage\n  {path}\n  {error.format_message()}\n  hint: {path} --help")
        return EXIT_REFUSED
    except click.ClickException as error:
        _say(f"error: usage\n  {error.format_message()}")
        return EXIT_REFUSED
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _say(f"error: usage\n  {str(error.filename)[:200]}...\n  the name is too long for a path")
        return EXIT_REFUSED
    except click.Abort:
        _say("wtrain: interrupted")
        return EXIT_INTERRUPTED
    except SystemExit as end:  # a command's own code
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return result if isinstance(result, int) else EXIT_SUCCESS


def _open_closed_streams() -> None:
    """Point standard streams that the shell has closed (`<&-`) at the null device.

    Otherwise the next file that is opened gets that number, and a child uses it as its output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _say(text: str) -> None:
    # stderr may be a closed terminal; the exit code remains.
    from watchdog_train.report.words import safe

    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(safe(text) + "\n")
    _flush(sys.stderr)


def _flush(*streams: TextIO) -> None:
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _drop_stdout() -> None:
    # Python flushes stdout once more at exit, and would complain about the same pipe there.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def report_crash(error: BaseException, arguments: Sequence[str]) -> str:
    """Write the crash file; returns the line for the user.

    The file holds our own frames and the name of the command: arguments may hold a password.
    """
    import traceback

    summary = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    written = _write(error, arguments)
    if written is None:
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {frame[0].filename}:{frame[0].lineno}" if frame else ""
        return f"wtrain: a bug of wtrain itself: {summary}{where} (no crash file could be written)"
    return f"wtrain: a bug of wtrain itself: {summary} (details in {written})"


def _write(error: BaseException, arguments: Sequence[str]) -> str | None:
    import platform
    import time
    import traceback

    try:
        from watchdog_train import __version__
        from watchdog_train.evidence.redact import redact_text
        from watchdog_train.system.file_systems import state_directory

        folder = state_directory() / "crashes"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        command = arguments[0] if arguments and arguments[0].isalpha() else ""
        text = (
            f"wtrain {__version__} {command}\n"
            f"Python {platform.python_version()} on {sys.platform}\n\n"
            + redact_text("".join(traceback.format_exception(error))[-_CRASH_CHARACTERS:])
        )
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except (OSError, ImportError):
        return None
    return str(path)
