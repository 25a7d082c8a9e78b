"""Starting keepers by hand, the way the supervisor does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import wait_until
from watchdog_train.supervisor.hands.launch import KEEPER

PYTHON = sys.executable


def write_orders(folder: Path, argv: list[str] | None, **changes: Any) -> Path:
    """A launch.json with pipes that the keeper makes itself."""
    orders: dict[str, Any] = {
        "argv": argv,
        "cwd": str(folder),
        "env": None,
        "streams": {"output": "output.log"},
        "fds": None,
        "child_fds": None,
        "wake_fd": None,
        "inherited_fds": [],
        "cap_bytes": 64 * 1024 * 1024,
        "ignore_hup": False,
        "linger_s": 5.0,
        "tell_start": True,
        **changes,
    }
    path = folder / "launch.json"
    path.write_text(json.dumps(orders), encoding="utf-8")
    return path


def keeper_argv(orders: Path) -> list[str]:
    return [PYTHON, "-I", "-S", KEEPER, str(orders)]


def start_keeper_process(orders: Path, **options: Any) -> subprocess.Popen[bytes]:
    """A keeper in a session of its own; the caller waits for it."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(keeper_argv(orders), start_new_session=True, **options)


@contextmanager
def at_gate(folder: Path, script: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A keeper whose training, a shell, reads a line of `gate`; it ends after the block."""
    os.mkfifo(folder / "gate")
    orders = write_orders(folder, ["sh", "-c", script])
    with start_keeper_process(orders, **options) as process:
        yield process
        (folder / "gate").write_text("\n")
        assert process.wait(15) == 0


def keep(folder: Path, argv: list[str], *, timeout_s: float = 30.0, **changes: Any) -> int:
    """Run a command under a keeper to its end; the keeper's exit code."""
    with start_keeper_process(write_orders(folder, argv, **changes)) as process:
        return process.wait(timeout_s)


def record(
    folder: Path, name: str, timeout_s: float = 15.0, *, runs: bool | None = True
) -> dict[str, Any]:
    """A record of a keeper, once it is there; `runs`: of a training that was let run, if any."""
    path = folder / name

    def written() -> dict[str, Any] | None:
        fields: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        settled = fields.get("runs", True) or fields["error"]
        return fields if settled or not runs else None

    return wait_until(written, timeout_s, f"{name} is written")
