"""A run as a service: what its manager hears."""

from __future__ import annotations

import select
import socket
import sys
from pathlib import Path

import pytest

from tests.support import run_wtrain, start_wtrain, wait_until, write_fast_config

pytestmark = [
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="no such sockets"),
]

TRAINING = """
import os, time
import watchdog_train as wt
print("variables", [name for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC") if name in os.environ])
step = 0
while not os.path.exists("finish"):
    step += 1
    wt.beat(step)
    time.sleep(0.05)
"""


def heard(link: socket.socket) -> list[str]:
    """What has come so far."""
    lines: list[str] = []
    while select.select([link], [], [], 0)[0]:
        lines += link.recv(4096).decode().splitlines()
    return lines


def test_systemd_hears_that_we_live(tmp_path: Path) -> None:
    """Ready once training runs, alive as often as asked, then ending; training says nothing."""
    (tmp_path / "train.py").write_text(TRAINING)
    config = str(write_fast_config(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(str(tmp_path / "notify"))
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        run = start_wtrain(
            "run", "--config", config, "--", sys.executable, "train.py", cwd=tmp_path, env=env
        )
        lines: list[str] = []

        def is_fed() -> bool:
            lines.extend(heard(link))
            return lines.count("WATCHDOG=1") >= 4 and any("step" in line for line in lines)

        wait_until(is_fed, 30, "the watchdog is fed and the step told")
        assert lines[0] == "READY=1"
        (tmp_path / "finish").touch()
        done = run.result(30).check(0)
        lines += heard(link)
    assert lines.count("READY=1") == 1
    assert "STOPPING=1" in lines
    assert lines[-1].startswith("STATUS=exit code 0")
    assert "variables []" in done.stdout, done.describe()


def test_a_manager_that_never_listens_harms_nothing(tmp_path: Path) -> None:
    """The address is stale, and the queue of another one is full."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "finish").touch()
    env = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000"}
    run_wtrain("run", "--", sys.executable, "train.py", cwd=tmp_path, env=env).check(0)
