"""Starts one attempt: makes its streams and environment and hands both to a keeper.

It must not decide what is started (that is the plan) and must not wait for it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import watchdog_train.keeper
from watchdog_train.core.model import ExitStatus, Plan, Value
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.supervisor.environment import INJECT_DIRECTORY, training_environment
from watchdog_train.supervisor.records import KeeperRecord, read_exit, read_keeper, stream_files
from watchdog_train.supervisor.terminal import Terminal, open_stream, set_window_size

__all__ = [
    "INJECT_DIRECTORY",
    "KeeperRecord",
    "LaunchContext",
    "LaunchedKeeper",
    "Terminal",
    "drain_without_keeper",
    "read_exit",
    "read_keeper",
    "resize",
    "start_keeper",
    "stream_files",
    "training_environment",
]

KEEPER = str(Path(watchdog_train.keeper.__file__).with_name("__main__.py"))
EXIT_LINE = re.compile(rb"exit (-?\d{1,10}) (-?\d{1,10})")
"""Exit code and signal, one of them -1: the keeper's word on the wake pipe."""
LINGER_S = 5.0
"""How long a keeper stays for the last output when nobody is left but a disk takes nothing."""


class LaunchContext(Value, frozen=True, kw_only=True):
    """What every attempt of a run is launched with."""

    run_id: str
    token: str
    scope: str
    run_dir: Path
    cwd: Path
    slot_dir: Path | None
    log_cap_bytes: int
    ignore_hup: bool
    """nohup was meant."""
    environment: dict[str, str]
    """The user's, as it was when the run was started."""


class LaunchedKeeper:
    """A keeper and our own ends of what it works with."""

    def __init__(
        self, child: Child, streams: dict[str, Path], read_fds: dict[str, int], wake_fd: int
    ) -> None:
        self.child = child
        self.streams = streams
        self.read_fds = read_fds
        """Kept open, so that the training can write on when its keeper has died."""
        self.wake_fd = wake_fd
        """Readable, and not blocking, when there is output or an exit; -1 where there is none."""
        self.exit: ExitStatus | None = None
        """As the keeper told it, for when the run directory takes no exit.json."""
        self._half_line = b""

    def clear_wake(self) -> None:
        """Take what the keeper has sent, so that the next wait waits."""
        with suppress(BlockingIOError):
            while self.wake_fd >= 0:
                said = os.read(self.wake_fd, 4096)
                if not said:  # the keeper is gone: for ever readable
                    os.close(self.wake_fd)
                    self.wake_fd = -1
                self._hear(said)

    def _hear(self, said: bytes) -> None:
        *lines, rest = (self._half_line + said).split(b"\n")
        self._half_line = rest[-64:]
        for match in filter(None, map(EXIT_LINE.fullmatch, lines)):
            code, signal = (None if number == b"-1" else int(number) for number in match.groups())
            self.exit = ExitStatus(code=code, signal=signal, how_known="keeper")

    def close(self) -> None:
        """Let go of our ends; the keeper has its own."""
        _close(*self.read_fds.values(), self.wake_fd)
        self.read_fds, self.wake_fd = {}, -1


def start_keeper(
    run: LaunchContext, plan: Plan, attempt_dir: Path, terminal: Terminal, children: ChildTable
) -> LaunchedKeeper:
    """Start a keeper that starts the plan's command; what became of it is in its records.

    Raises:
        OSError: the attempt's folder cannot be written, or no process can be started.
    """
    env = training_environment(
        run.environment,
        run_id=run.run_id,
        token=run.token,
        scope=run.scope,
        run_dir=run.run_dir,
        attempt=plan.attempt,
        slot_dir=run.slot_dir,
        plan=plan,
    )
    ends = _Ends(terminal)
    inherited_fds = _inherited_fds()
    orders = {
        "argv": list(plan.argv),
        "cwd": str(run.cwd),
        "env": None,
        **ends.orders(),
        "inherited_fds": inherited_fds,
        "cap_bytes": run.log_cap_bytes,
        "ignore_hup": run.ignore_hup,
        "linger_s": LINGER_S,
        # psutil counts start times differently: then the system is asked by whoever reads.
        "tell_start": children.system.name == "linux",
    }
    try:
        child = _spawn_keeper(
            attempt_dir / "launch.json",
            orders,
            children,
            env=env,
            stdin=0 if terminal.give_stdin else subprocess.DEVNULL,
            pass_fds=(*ends.all_fds(), *inherited_fds),
        )
    except BaseException:
        _close(*ends.reads.values(), ends.wake_read)
        raise
    finally:
        _close(*ends.writes.values(), ends.wake_write)
    paths = {name: attempt_dir / file for name, file in ends.files.items()}
    return LaunchedKeeper(child, paths, ends.reads, ends.wake_read)


def drain_without_keeper(
    launched: LaunchedKeeper, orders_dir: Path, children: ChildTable, *, log_cap_bytes: int
) -> Child:
    """Pump the streams of a training whose keeper has died; it would block on a full pipe.

    Raises:
        OSError: the folder cannot be written, or no process can be started.
    """
    orders = {
        "argv": None,
        "streams": {name: str(path.absolute()) for name, path in launched.streams.items()},
        "fds": launched.read_fds,
        "wake_fd": None,
        "cap_bytes": log_cap_bytes,
        "linger_s": LINGER_S,
    }
    return _spawn_keeper(
        orders_dir / "drain.json",
        orders,
        children,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(launched.read_fds.values()),
    )


def resize(launched: LaunchedKeeper, rows: int, columns: int) -> None:
    """The user's window has another size now."""
    for fd in launched.read_fds.values():
        set_window_size(fd, rows, columns)


class _Ends:
    """The streams of a training before its keeper has them."""

    def __init__(self, terminal: Terminal) -> None:
        names = ("output",) if terminal.same_stream else ("stdout", "stderr")
        self.files = {name: f"{name}.log" for name in names}
        self.reads: dict[str, int] = {}
        self.writes: dict[str, int] = {}
        self.wake_read = self.wake_write = -1
        if sys.platform == "win32":  # the keeper makes pipes itself: handles do not travel as fds
            return
        on_terminal = {
            "output": terminal.stdout_is_terminal,
            "stdout": terminal.stdout_is_terminal,
            "stderr": terminal.stderr_is_terminal,
        }
        for name in names:
            ends = open_stream(terminal if on_terminal[name] else None)
            self.reads[name], self.writes[name] = ends
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)

    def all_fds(self) -> tuple[int, ...]:
        """What the keeper needs of them."""
        wake = () if self.wake_write < 0 else (self.wake_write,)
        return (*self.reads.values(), *self.writes.values(), *wake)

    def orders(self) -> dict[str, Any]:
        """The part of launch.json that names them."""
        if not self.reads:
            return {"streams": self.files, "fds": None, "child_fds": None, "wake_fd": None}
        output = self.writes.get("output", -1)
        child_fds = {
            "stdin": 0,
            "stdout": self.writes.get("stdout", output),
            "stderr": self.writes.get("stderr", output),
        }
        return {
            "streams": self.files,
            "fds": self.reads,
            "child_fds": child_fds,
            "wake_fd": self.wake_write,
        }


def _spawn_keeper(
    path: Path,
    orders: Mapping[str, Any],
    children: ChildTable,
    *,
    env: Mapping[str, str],
    stdin: int,
    pass_fds: tuple[int, ...],
) -> Child:
    path.write_text(json.dumps(orders), encoding="utf-8")
    return children.spawn(
        [sys.executable, "-I", "-S", KEEPER, str(path)],
        name="keeper",
        deadline_s=None,
        env=env,
        stdin=stdin,
        pass_fds=pass_fds,
    )


def _inherited_fds() -> list[int]:
    """What a shell gave us beyond the three streams: `--data <(zcat x)` is such a file.

    Python marks everything that it opens itself as not inheritable.
    """
    found = []
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError, ValueError):
                if int(name) > 2 and os.get_inheritable(int(name)):
                    found.append(int(name))
    return sorted(found)


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
