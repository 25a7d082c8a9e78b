"""What keepers write down beside the output: who runs, how it ended, and where its output goes.

Reads only, tolerates whatever it finds, and says None where nothing can be known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.core.model import ExitStatus, ProcessId, Value
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.whole_files import read_json

RECORD_CAP_BYTES = 64 * 1024


class _Failure(Value):
    message: str


class _Exit(Value):
    code: int | None = None
    signal: int | None = None


class KeeperRecord(Value):
    """What a keeper says of itself and of the training it has started, or failed to."""

    keeper_pid: int
    keeper_start: int | None
    """None where only psutil tells start times: ask the system for the identity."""
    pid: int | None
    start: int | None
    failure: _Failure | None = msgspec.field(name="error")
    runs: bool
    """False: it was forked, and waits for a word of the keeper's before it becomes the training."""

    def keeper(self, system: ProcessSystem) -> ProcessId:
        return _identity(system, self.keeper_pid, self.keeper_start)

    @property
    def error(self) -> str | None:
        """Why no training could be started."""
        return self.failure.message if self.failure is not None else None

    def root(self, system: ProcessSystem) -> ProcessId | None:
        """The training's root process; None when none could be started."""
        return None if self.pid is None else _identity(system, self.pid, self.start)


def read_keeper(attempt_dir: Path) -> KeeperRecord | None:
    """The keeper's record, None before there is one."""
    return read_json(attempt_dir / "keeper.json", KeeperRecord, cap_bytes=RECORD_CAP_BYTES)


def read_exit(attempt_dir: Path) -> ExitStatus | None:
    """How the training's root ended, None while nobody has written that down."""
    keeper = read_keeper(attempt_dir)
    if keeper is not None and keeper.error is not None:
        return ExitStatus(code=None, signal=None, how_known="not-started", error=keeper.error)
    found = read_json(attempt_dir / "exit.json", _Exit, cap_bytes=RECORD_CAP_BYTES)
    if found is None:
        return None
    return ExitStatus(code=found.code, signal=found.signal, how_known="keeper-file")


def stream_files(attempt_dir: Path) -> dict[str, Path]:
    """The capture files of an attempt by stream: output, or stdout and stderr."""
    streams = read_orders(attempt_dir).get("streams")
    known = ("output", "stdout", "stderr")
    return {
        name: attempt_dir / f"{name}.log"
        for name in known
        if isinstance(streams, dict) and name in streams
    }


def read_orders(attempt_dir: Path) -> dict[str, Any]:
    """What the keeper of an attempt was told; training may have written there since."""
    return read_json(attempt_dir / "launch.json", dict[str, Any], cap_bytes=RECORD_CAP_BYTES) or {}


def gives_ranks_streams(attempt_dir: Path) -> bool:
    """Whether the launcher of an attempt was offered a stream of its own for each rank."""
    return bool(read_orders(attempt_dir).get("ranks"))


def _identity(system: ProcessSystem, pid: int, start: int | None) -> ProcessId:
    if start is not None:
        return ProcessId(pid, start)
    return system.identity(pid) or ProcessId(pid, 0)
