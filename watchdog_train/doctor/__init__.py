"""What this machine can do for wtrain and its trainings, found by trying it; each with a cure.

Must not change anything: what it starts it ends, and what it writes it removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from watchdog_train.core.model import Value
from watchdog_train.system.protocol import ProcessSystem

Status = Literal["ok", "warning", "failure", "unknown"]


class Check(Value):
    """One line of the answer."""

    name: str
    status: Status
    says: str
    mend: str | None = None
    """What a person can do about it; None where nothing has to be done."""


def examine(system: ProcessSystem, python: str, directories: Sequence[Path]) -> Iterator[Check]:
    """All checks, as they are done; some take seconds.

    Args:
        system: of this machine.
        python: the interpreter of the training, whose fault handler is tried.
        directories: where checkpoints go.
    """
    from watchdog_train.doctor import machine

    yield machine.never_run(system)
    yield machine.preset()
    yield machine.stacks()
    yield machine.fault_handler(python)
    yield from machine.processes(system)
    yield from machine.memory()
    for directory in directories:
        yield machine.disk(system, directory)
    yield from machine.gpus(system)
