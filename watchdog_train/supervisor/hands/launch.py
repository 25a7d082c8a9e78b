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
from typing import TYPE_CHECKING, Any

import watchdog_train.keeper
from watchdog_train.core.model import ExitStatus, Plan, ProcessId
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.supervisor.hands.streams import Ends, TakenEnds
from watchdog_train.system import proc
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.whole_files import read_json, replace_whole

if TYPE_CHECKING:
    from watchdog_train.supervisor.context import Context

KEEPER = str(Path(watchdog_train.keeper.__file__).with_name("__main__.py"))
KEEPER_CHILD = "keeper"
"""Name of a keeper, and of a pump that has replaced it, among our children."""
EXIT_LINE = re.compile(rb"exit (-?\d{1,10}) (-?\d{1,10})")
"""Exit code and signal, one of them -1: the keeper's message on the wake pipe."""
ORDERS_CAP_BYTES = 64 * 1024
LINGER_S = 5.0
"""How long a keeper tries to write the last output when all have exited and the disk refuses."""


class LaunchedKeeper:
    def __init__(self, child: Child, ends: Ends, attempt_dir: Path) -> None:
        self.child = child
        self.ends = ends
        """Kept open, so that the training can write on when its keeper has died."""
        self.attempt_dir = attempt_dir
        self.streams = {name: attempt_dir / file for name, file in ends.files.items()}
        self.exit: ExitStatus | None = None
        """By the keeper's message, for a run directory that takes no exit.json."""
        self._half_line = b""

    @property
    def wake_fd(self) -> int:
        """Readable, and not blocking, when there is output or an exit; -1: no such descriptor."""
        return self.ends.wake_read

    def clear_wake(self) -> None:
        """Read wake-ups and the keeper's exit message, so that the next wait blocks."""
        with suppress(BlockingIOError):
            while self.wake_fd >= 0:
                said = os.read(self.wake_fd, 4096)
                if not said:  # the keeper is gone: readable at all times
                    os.close(self.wake_fd)
                    self.ends.wake_read = -1
                self._hear(said)

    def _hear(self, said: bytes) -> None:
        *lines, rest = (self._half_line + said).split(b"\n")
        self._half_line = rest[-64:]
        for match in filter(None, map(EXIT_LINE.fullmatch, lines)):
            code, signal = (None if number == b"-1" else int(number) for number in match.groups())
            self.exit = ExitStatus(code=code, signal=signal, how_known="keeper")


def start_keeper(
    context: Context, plan: Plan, env: Mapping[str, str], *, rank_streams: int = 0
) -> LaunchedKeeper:
    """Start a keeper that starts the plan's command; what became of it is in its records.

    `rank_streams`: number of ranks with streams of their own, for a launcher that can use
    them.

    Raises:
        OSError: the attempt's folder cannot be written, or no process can be started.
    """
    attempt_dir = context.directory.attempt(plan.attempt)
    terminal, children = context.terminal, context.children
    log_cap_bytes = context.policy.output.log_cap_bytes
    ends = Ends(terminal, rank_streams, is_shown=context.foreground)
    inherited_fds = _inherited_fds()
    orders = {
        "argv": list(plan.argv),
        "cwd": context.cwd,
        "env": None,
        **ends.orders(log_cap_bytes),
        "inherited_fds": inherited_fds,
        "cap_bytes": log_cap_bytes,
        "ignore_hup": context.ignore_hup,
        "linger_s": LINGER_S,
        # Elsewhere psutil counts start times differently: the reader asks the system.
        "tell_start": sys.platform == "linux",
        "adopt_orphans": children.system.name == "linux",
    }
    try:
        child = _spawn_keeper(
            attempt_dir / "launch.json",
            orders,
            children,
            env=env,
            stdin=0 if terminal.give_stdin else subprocess.DEVNULL,
            pass_fds=(*ends.for_keeper(), *inherited_fds),
        )
    except BaseException:
        ends.close_reads()
        raise
    finally:
        ends.close_writes()
    return LaunchedKeeper(child, ends, attempt_dir)


def stream_files(attempt_dir: Path) -> dict[str, Path]:
    """Capture files by stream: output, or stdout and stderr; empty before launch.json exists."""
    streams = read_orders(attempt_dir).get("streams")
    known = ("output", "stdout", "stderr")
    return {
        name: attempt_dir / f"{name}.log"
        for name in known
        if isinstance(streams, dict) and name in streams
    }


def read_orders(attempt_dir: Path) -> dict[str, Any]:
    """The orders that the keeper of an attempt got; training may have written there since."""
    return read_json(attempt_dir / "launch.json", dict[str, Any], cap_bytes=ORDERS_CAP_BYTES) or {}


def hold_streams(who: ProcessId, attempt_dir: Path, system: ProcessSystem) -> Ends | None:
    """Ends to read beside a keeper of somebody else's: without one training could not write on.

    Returns:
        None where the system gives no copies of another process's files.
    """
    try:
        return TakenEnds(read_orders(attempt_dir), lambda fd: system.take_descriptor(who, fd))
    except OSError:
        return None


def drain_without_keeper(
    ends: Ends, attempt_dir: Path, orders_dir: Path, children: ChildTable, *, log_cap_bytes: int
) -> Child:
    """Pump the streams of a training whose keeper has died; it would block on a full pipe.

    Raises:
        OSError: the folder cannot be written, or no process can be started.
    """
    orders = {
        "argv": None,
        **ends.drain_orders(attempt_dir, log_cap_bytes),
        "cap_bytes": log_cap_bytes,
        "linger_s": LINGER_S,
    }
    return _spawn_keeper(
        orders_dir / "drain.json",
        orders,
        children,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        pass_fds=ends.for_pump(),
    )


def _spawn_keeper(
    path: Path,
    orders: Mapping[str, Any],
    children: ChildTable,
    *,
    env: Mapping[str, str],
    stdin: int,
    pass_fds: tuple[int, ...],
) -> Child:
    # For its owner alone: arguments may hold secrets. As ASCII: they need not be UTF-8.
    replace_whole(path, json.dumps(orders).encode("ascii"))
    return children.spawn(
        [_keeper_python(), "-I", "-S", KEEPER, str(path)],
        name=KEEPER_CHILD,
        deadline_s=None,
        env=env,
        stdin=stdin,
        pass_fds=pass_fds,
    )


def _keeper_python() -> str:
    """Its interpreter; on Windows that behind the python.exe of a virtual environment.

    There that file only starts the real one, in a Job object that ends with it.
    """
    if sys.platform == "win32":
        return str(getattr(sys, "_base_executable", None) or sys.executable)
    return sys.executable


def _inherited_fds() -> list[int]:
    """What a shell gave us beyond the three streams: `--data <(zcat x)` is such a file.

    Python marks everything that it opens itself as not inheritable.
    """
    found = []
    for number in proc.numbers("self", "fd") or ():
        with suppress(OSError):  # the one by which they were listed
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found
