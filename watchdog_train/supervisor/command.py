"""Check the command before anything is made: found, executable, and probably what was meant."""

from __future__ import annotations

import os
import shutil

from watchdog_train.errors import WtrainError


def check_command(command: tuple[str, ...]) -> None:
    """Refuse what cannot be started.

    Raises:
        WtrainError: exit code 78, with the likely cure.
    """
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
    if shutil.which(program) is not None:
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
        hint="is its environment active? `which` shows where your shell finds a program",
        reference="command-not-found",
    )
