"""Asks the training's own interpreter: what it has and does is not what ours has."""

from __future__ import annotations

import subprocess
from typing import TypeVar

import msgspec

T = TypeVar("T")
CAP_BYTES = 65_536


class AskError(Exception):
    """It did not answer; the text says why, in a word or two."""


def ask(python: str, program: str, *words: str, within_s: float, answer: type[T]) -> T:
    """Run a program of ours in it, whose last line is JSON.

    Args:
        python: the interpreter.
        program: its text.
        words: its arguments.
        within_s: deadline in seconds.
        answer: what the JSON has to be.

    Raises:
        AskError: it cannot be run, took too long, or answered something else.
    """
    try:
        done = subprocess.run(
            [python, "-c", program, *words],
            capture_output=True,
            check=False,
            timeout=within_s,
            stdin=subprocess.DEVNULL,
        )
        return msgspec.json.decode(done.stdout[-CAP_BYTES:].splitlines()[-1], type=answer)
    except (OSError, IndexError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise AskError(type(error).__name__) from error
