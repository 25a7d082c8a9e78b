"""Check the command before anything is made: found, executable, and probably what was meant."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from watchdog_train.core.recovery.plans import AUTO_RESUME
from watchdog_train.core.starting.command_line import PythonTarget, python_target, script_words
from watchdog_train.errors import WtrainError
from watchdog_train.store.log_reading import MAX_LINE_BYTES

MAX_COMMAND_BYTES = MAX_LINE_BYTES - 128 * 1024
"""The rest of its line in the log is for a plan's environment and texts."""
_FIND_S, _NOT_FOUND = 10.0, 9
_FIND_MODULE = (
    "import importlib.util, sys\n"
    f"sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else {_NOT_FOUND})"
)


def check_command(command: tuple[str, ...], resume_arg: str | None = None) -> None:
    """Raise WtrainError, exit code 78, with the likely cure for what cannot be started."""
    if not command:
        raise WtrainError(
            "there is no command to run",
            hint="wtrain run -- python train.py",
            reference="command-missing",
        )
    program = command[0]
    if program.startswith("-"):
        raise WtrainError(
            f"there is no option {program}",
            hint="options of wtrain come before the command: wtrain run --help lists them",
            reference="unknown-option",
        )
    _refuse_what_cannot_be_recorded(command)
    if resume_arg not in (None, AUTO_RESUME) and script_words(command).receiver == "nobody":
        raise WtrainError(
            "--resume-arg cannot be added to the text of a shell",
            context=shlex.join(command)[:200],
            hint='put the text into a file that ends in `python train.py "$@"`, and run that: '
            "wtrain run -- bash run.sh",
            reference="resume-arg-shell",
        )
    found = shutil.which(program)
    if found is not None:
        _refuse_missing_target(found, command)
        return
    if program.endswith(".py") and os.path.isfile(program):
        rest = " ".join(command)
        raise WtrainError(
            f"{program} is a Python file, not a program that can be started",
            hint=f"did you mean `wtrain run -- python {rest}`?",
            reference="command-not-executable",
        )
    has_path = os.sep in program or (os.altsep is not None and os.altsep in program)
    if os.path.isdir(program) and has_path:
        raise WtrainError(f"{program} is a directory", reference="command-not-executable")
    if has_path and os.path.isfile(program):
        raise WtrainError(
            f"{program} is not executable",
            hint=f"chmod +x {program}, or name the interpreter: wtrain run -- bash {program}",
            reference="command-not-executable",
        )
    raise WtrainError(
        f"command not found: {program}",
        hint=_near(program, os.environ.get("PATH", "").split(os.pathsep))
        or "is its environment active? `which` shows where your shell finds a program",
        reference="command-not-found",
    )


def _near(name: str, folders: Iterable[str]) -> str | None:
    """A question that suggests a file of these folders with nearly this name."""
    found: set[str] = set()
    for folder in folders:
        with suppress(OSError):
            found.update(os.listdir(folder))
    near = difflib.get_close_matches(name, sorted(found), n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else None


def _refuse_missing_target(python: str, command: tuple[str, ...]) -> None:
    """Refuse a missing script or module: it would fail the same way in every attempt."""
    target = python_target(command)
    if target is None:
        return
    if not target.is_module and not os.path.exists(target.name):
        raise WtrainError(
            f"there is no script {target.name}",
            context=f"in {os.getcwd()}",
            hint=_near(os.path.basename(target.name), [os.path.dirname(target.name) or "."])
            or "check the name and the directory",
            reference="script-not-found",
        )
    if target.is_module and not _has_module(python, target):
        raise WtrainError(
            f"{command[0]} finds no module {target.name.partition('.')[0]}",
            hint="is its environment active, and this the right directory?",
            reference="module-not-found",
        )


def _has_module(python: str, target: PythonTarget) -> bool:
    """Ask the interpreter of the command, without importing it; True if it does not answer."""
    top = target.name.partition(".")[0]
    try:
        asked = subprocess.run(
            [python, *target.options, "-c", _FIND_MODULE, top],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_FIND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return asked.returncode != _NOT_FOUND


def _refuse_what_cannot_be_recorded(command: tuple[str, ...]) -> None:
    """A restart repeats the recorded command, so it must fit into the record completely."""
    try:
        size = len(msgspec.json.encode((command, os.getcwd())))
    except UnicodeEncodeError as error:
        raise WtrainError(
            "the command, or the directory it runs in, has a name that is not UTF-8",
            context=error.object.encode("utf-8", "backslashreplace").decode(),
            hint="rename it",
            reference="command-not-recordable",
        ) from None
    if size > MAX_COMMAND_BYTES:
        raise WtrainError(
            f"the command has {size} characters, and {MAX_COMMAND_BYTES} can be recorded",
            hint="put the long list into a file that the script reads",
            reference="command-not-recordable",
        )
