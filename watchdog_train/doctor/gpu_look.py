"""One look at the GPUs, by a child with a deadline: a driver that lost its GPU never answers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from typing import Any

import msgspec

from watchdog_train.core.model.gpu import GpuReading
from watchdog_train.system import current
from watchdog_train.system.gpu import command, is_asked
from watchdog_train.system.strangers import stranger

DEADLINE_S = 5.0
_ANSWER_CAP_BYTES = 1 << 20
_POLL_S = 0.02


class GpuLook:
    """Started early, read late."""

    def __init__(self, setting: str = "auto", argv: list[str] | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: str | None = None
        self._started = time.monotonic()
        if argv is None and not is_asked(setting):
            return
        try:
            self._out = tempfile.TemporaryFile()  # noqa: SIM115 - read and closed by answer()
            self._process = subprocess.Popen(
                argv or command(once=True),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=os.sep,
            )
        except OSError as error:
            self._problem = f"no process could be started to look at the GPUs: {error}"

    def answer(self, until: float) -> dict[str, Any] | None:
        """What NVML told by then, or the problem; None where there is no GPU to look at."""
        process = self._process
        if process is None:
            return {"problem": self._problem} if self._problem else None
        until = min(until, self._started + DEADLINE_S)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_S)
        with self._out as file:
            if process.poll() is None:
                process.kill()  # stuck in the driver it stays until that lets go of it
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                return {"problem": "NVML gave no answer in time: the driver may be stuck"}
            file.seek(0)
            line = file.read(_ANSWER_CAP_BYTES).partition(b"\n")[0]
        try:
            reading = msgspec.json.decode(line, type=GpuReading)
        except (msgspec.DecodeError, RecursionError):
            return {"problem": f"NVML told nothing (exit code {process.returncode})"}
        return with_names(reading)


def with_names(reading: GpuReading) -> dict[str, Any]:
    """As JSON has it; with every process a word for a person: pid, command and user.

    Not in a container, where a pid of the driver's belongs to somebody else here, or to nobody.
    """
    found: dict[str, Any] = msgspec.to_builtins(reading)
    if reading.foreign_pids:
        return found
    system = current()
    for device in found["devices"]:
        for process in device["processes"] or ():
            process["who"] = stranger(system, process["pid"])
    return found
