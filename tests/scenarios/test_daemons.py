"""Whose process is it: what a script has started for its user lives on, the rest is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.support import (
    free_port,
    is_alive,
    program_command,
    run_wtrain,
    start_wtrain,
    wait_until,
    write_fast_config,
)

pytestmark = [pytest.mark.processes, pytest.mark.scenario]

LEFT = {
    "plain": "none",
    "own log": "none",
    "served": "clients",
    "windows": "none",
    "named": "leave",
}
KILLED = {
    "pipe": "pipe",
    "socket": "socket",
    "memory": "memory",
    "output": "output",
    "file": "file",
    "checkpoint": "file",
    "port": "port",
    "terminal": "terminal",
    "taken": "take",
    "copy": "fork",
}


def test_daemons_of_the_user_live_on(tmp_path: Path) -> None:
    """Through a crash, a restart and the end of the run; all that belongs to it is killed."""
    config = write_fast_config(tmp_path)
    text = config.read_text().replace(
        "stopping:\n", "stopping:\n  leave: [please-leave]\n  take: [please-take]\n"
    )
    config.write_text(text.replace("recovery:\n", "recovery:\n  checkpoints: [saves]\n"))
    running = start_wtrain(
        *("run", "--config", str(config), "--", *program_command("daemons.py")),
        cwd=tmp_path,
        env={"MASTER_PORT": str(free_port())},
    )
    told = tmp_path / "pids.json"
    wait_until(told.exists, 30, "the daemons are started")
    pids = json.loads(told.read_text())
    with socket.socket(socket.AF_UNIX) as client:
        wait_until(lambda: client.connect_ex(str(tmp_path / "server.sock")) == 0, 10, "it serves")

        def grounds() -> dict[int, str]:
            return {
                one["process"]["pid"]: one["hold"]["ground"]
                for event in running.events
                if event["type"] == "daemons_judged"
                for one in event["daemons"]
            }

        expected = {pids[name]: ground for name, ground in (LEFT | KILLED).items()}
        try:
            wait_until(lambda: expected.items() <= grounds().items(), 30, "all are judged")
        except AssertionError:
            assert grounds() == expected
            raise
        (tmp_path / "go").touch()
        run = running.result(60).check(0)
    alive = {name for name, pid in pids.items() if is_alive(pid)}
    try:
        assert alive == set(LEFT), run.describe()
        gone = run.of_type("tree_gone")
        assert len(gone) == 2, run.describe()
        for event in gone:  # also those of the attempt before
            left = {one["process"]["pid"] for one in event["left"]}
            assert {pids[name] for name in LEFT} <= left, run.describe()
        assert f"(pid {pids['plain']}): it holds nothing of the training" in run.stderr
        assert f"to end it: kill {pids['named']}" in run.stderr
        found = run_wtrain("clean", "--json", cwd=tmp_path).json()
        listed = {one["what"]: one for one in found["leftovers"]}
        assert listed[f"pid {pids['plain']}"]["removable"] is False
    finally:
        for event in run.of_type("tree_gone"):
            for one in event["left"]:
                if is_alive(one["process"]["pid"]):
                    os.kill(one["process"]["pid"], signal.SIGKILL)
