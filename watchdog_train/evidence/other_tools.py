"""Stacks by pystack or by macOS's `sample`, where py-spy could not: what to run, how to read it."""

from __future__ import annotations

import sys

from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.evidence.jobs import Finished
from watchdog_train.evidence.programs import find_program
from watchdog_train.evidence.text.formats import Tool
from watchdog_train.evidence.text.reader import read_text

PYSTACK = "pystack"
_SAMPLE = "/usr/bin/sample"
_SAMPLE_S = 1


def find_pystack() -> str | None:
    """The pystack program, if it is installed; it knows Pythons that py-spy does not know yet."""
    return find_program(PYSTACK, PYSTACK) if sys.platform.startswith("linux") else None


def pystack_command(binary: str, pid: int) -> tuple[str, ...]:
    """Reads without stopping the process: what py-spy failed on may be fragile."""
    return (binary, "remote", "--no-block", str(pid))


def find_sample() -> str | None:
    """The sampler of macOS: native frames only, and no rights of root for one's own processes."""
    return find_program(_SAMPLE) if sys.platform == "darwin" else None


def sample_command(binary: str, pid: int) -> tuple[str, ...]:
    """One second of samples, printed."""
    return (binary, str(pid), str(_SAMPLE_S), "-mayDie", "-file", "/dev/stdout")


def parse(finished: Finished, tool: Tool) -> tuple[ThreadStack, ...] | None:
    """The threads that the tool printed; None when it printed none. Never raises."""
    if finished.code != 0:
        return None
    dumps = [dump for dump in read_text(finished.stdout).dumps if dump.tool == tool]
    return dumps[0].threads if dumps and any(t.frames for t in dumps[0].threads) else None


def reason(finished: Finished, name: str) -> str:
    """Why there are no stacks, in words."""
    if finished.problem is not None:
        return f"{name} {finished.problem}"
    lines = [line.strip() for line in finished.stderr.splitlines() if line.strip()]
    return f"{name} failed: {lines[-1][:200]}" if lines else f"{name} printed no stack"
