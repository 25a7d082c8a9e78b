"""Starts one attempt: makes its streams and environment and hands both to a keeper.

It must not decide what is started (that is the plan) and must not wait for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import watchdog_train.keeper
from watchdog_train.client import layout
from watchdog_train.core.model import ExitStatus, Plan, Value
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.supervisor.terminal import Terminal, open_stream, set_window_size

INJECT_DIRECTORY = Path(layout.__file__).parent / "inject"
LINGER_S = 5.0
"""How long a keeper stays for the last output when nobody is left but a disk takes nothing."""
RECORD_CAP_BYTES = 64 * 1024
PER_ATTEMPT_NAMES = tuple(
    value
    for name, value in vars(layout).items()
    if name.startswith("ENV_") and name != "ENV_NO_PTRACER"
)


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


class KeeperRecord(Value, frozen=True, kw_only=True):
    """What a keeper says of itself and of the training it has started, or failed to."""

    keeper_pid: int
    keeper_start: int | None
    """None where only psutil tells start times: ask the system for the identity."""
    pid: int | None
    start: int | None
    error: str | None
    errno: int | None
    started_at: float


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

    def clear_wake(self) -> None:
        """Take what the keeper has sent, so that the next wait waits."""
        with suppress(BlockingIOError):
            while self.wake_fd >= 0 and len(os.read(self.wake_fd, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Let go of our ends; the keeper has its own."""
        _close(*self.read_fds.values(), self.wake_fd)
        self.read_fds, self.wake_fd = {}, -1


def training_environment(
    base_env: Mapping[str, str],
    *,
    run_id: str,
    token: str,
    scope: str,
    run_dir: Path,
    attempt: int,
    slot_dir: Path | None,
    plan: Plan,
) -> dict[str, str]:
    """The user's environment, the plan's changes to it, and what the client reads."""
    env = {name: value for name, value in base_env.items() if name not in PER_ATTEMPT_NAMES}
    env.update(plan.env)
    # Never a trailing separator: it would put the working directory on sys.path.
    env["PYTHONPATH"] = os.pathsep.join(
        entry for entry in (str(INJECT_DIRECTORY), env.get("PYTHONPATH")) if entry
    )
    env[layout.ENV_RUN_ID] = run_id
    env[layout.ENV_TOKEN] = token
    env[layout.ENV_SCOPE] = scope
    env[layout.ENV_RUN_DIR] = str(run_dir)
    env[layout.ENV_ATTEMPT] = str(attempt)
    env[layout.ENV_ATTEMPT_DIR] = str(run_dir / "attempts" / f"{attempt:04d}")
    env[layout.ENV_SETTINGS] = json.dumps(plan.in_process)
    if slot_dir is not None:
        env[layout.ENV_SLOT_DIR] = str(slot_dir)
    if plan.checkpoint is not None:
        env[layout.ENV_RESUME_FROM] = plan.checkpoint.path
        if plan.resume_via == "hook":
            env[layout.ENV_RESUME_HOOK] = json.dumps(
                {
                    "format": plan.checkpoint.format,
                    "path": plan.checkpoint.path,
                    "step": plan.checkpoint.step,
                    "output_dir": os.path.dirname(plan.checkpoint.path),
                    "ordinal": plan.checkpoint.ordinal,
                }
            )
    # setproctitle overwrites the environment that /proc shows, and with it the token.
    env.setdefault("SPT_NOENV", "1")
    if sys.platform == "win32":
        # An emoji printed into a cp1252 pipe raises UnicodeEncodeError.
        env.setdefault("PYTHONIOENCODING", "utf-8")
    return env


def start_keeper(
    run: LaunchContext, plan: Plan, attempt_dir: Path, terminal: Terminal, children: ChildTable
) -> LaunchedKeeper:
    """Start a keeper that starts the plan's command; what became of it is in its records.

    Raises:
        OSError: the attempt's folder cannot be written, or no process can be started.
    """
    env = training_environment(
        os.environ,
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
    launched: LaunchedKeeper, attempt_dir: Path, children: ChildTable, *, log_cap_bytes: int
) -> Child:
    """Pump the streams of a training whose keeper has died; it would block on a full pipe."""
    orders = {
        "argv": None,
        "streams": {name: path.name for name, path in launched.streams.items()},
        "fds": launched.read_fds,
        "wake_fd": None,
        "cap_bytes": log_cap_bytes,
        "linger_s": LINGER_S,
    }
    return _spawn_keeper(
        attempt_dir / "drain.json",
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


def read_keeper(attempt_dir: Path) -> KeeperRecord | None:
    """The keeper's record, None before there is one."""
    fields = _read_record(attempt_dir / "keeper.json")
    if fields is None:
        return None
    error = fields.pop("error", None) or {}
    with suppress(msgspec.ValidationError):
        flat = {**fields, "error": error.get("message"), "errno": error.get("errno")}
        return msgspec.convert(flat, KeeperRecord)
    return None


def read_exit(attempt_dir: Path) -> ExitStatus | None:
    """How the training's root ended, None while nobody has written that down."""
    keeper = read_keeper(attempt_dir)
    if keeper is not None and keeper.error is not None:
        return ExitStatus(code=None, signal=None, how_known="not-started", error=keeper.error)
    fields = _read_record(attempt_dir / "exit.json")
    if fields is None:
        return None
    with suppress(msgspec.ValidationError):
        return msgspec.convert(
            {
                "code": fields.get("code"),
                "signal": fields.get("signal"),
                "how_known": "keeper-file",
            },
            ExitStatus,
        )
    return None


def stream_files(attempt_dir: Path) -> dict[str, Path]:
    """The capture files of an attempt by stream: output, or stdout and stderr."""
    fields = _read_record(attempt_dir / "launch.json") or {}
    streams = fields.get("streams")
    known = ("output", "stdout", "stderr")
    return {
        name: attempt_dir / f"{name}.log"
        for name in known
        if isinstance(streams, dict) and name in streams
    }


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
        [sys.executable, "-I", "-S", watchdog_train.keeper.__file__, str(path)],
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


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            fields = msgspec.json.decode(file.read(RECORD_CAP_BYTES))
    except (OSError, msgspec.DecodeError):
        return None
    return fields if isinstance(fields, dict) else None


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
