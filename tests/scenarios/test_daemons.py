"""Whose process is it: what a script has started for its user lives on, the rest is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import uuid
from _multiprocessing import SemLock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import (
    MARKER,
    RunningWtrain,
    free_port,
    is_alive,
    marked_processes,
    program_command,
    run_wtrain,
    start_fast,
    wait_until,
    write_fast_config,
)

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


@contextmanager
def started(tmp_path: Path, **env: str) -> Iterator[tuple[RunningWtrain, dict[str, int], str]]:
    """A run whose script has started them all; at the end nobody of them is left."""
    config = write_fast_config(tmp_path)
    patterns = "  leave: [please-leave]\n  take: [please-take]\n"
    text = config.read_text().replace("stopping:\n", f"stopping:\n{patterns}")
    text = text.replace("hang_grace_s: 1", "hang_grace_s: 0.2")
    config.write_text(text.replace("recovery:\n", "recovery:\n  checkpoints: [saves]\n"))
    name = f"/wt-{uuid.uuid4().hex[:12]}"
    older = SemLock(1, 1, 1, f"{name}-older", False)
    running = start_fast(
        tmp_path, program_command("daemons.py", name), env={"MASTER_PORT": str(free_port()), **env}
    )
    told = tmp_path / "pids.json"
    wait_until(told.exists, 30, "the daemons are started")
    try:
        yield running, json.loads(told.read_text()), name
    finally:
        for path in Path("/dev/shm").glob(f"sem.{name[1:]}-*"):
            path.unlink()
        assert older
        for pid in marked_processes(os.environ[MARKER]):
            if pid != running.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def judged(running: RunningWtrain) -> dict[int, str]:
    """Grounds by pid, as the log has them."""
    return {
        one["process"]["pid"]: one["hold"]["ground"]
        for event in running.events
        if event["type"] == "daemons_judged"
        for one in event["daemons"]
    }


def wait_for_judgement(running: RunningWtrain, pids: dict[str, int]) -> None:
    expected = {pids[name]: ground for name, ground in (LEFT | KILLED).items()}
    try:
        wait_until(lambda: expected.items() <= judged(running).items(), 30, "all are judged")
    except AssertionError:
        assert judged(running) == expected
        raise


@pytest.mark.needs_open_files
def test_daemons_of_the_user_live_on(tmp_path: Path) -> None:
    """Through a crash, a restart and the end of the run; all that belongs to it is killed."""
    with started(tmp_path) as (running, pids, name), socket.socket(socket.AF_UNIX) as client:
        wait_until(lambda: client.connect_ex(str(tmp_path / "server.sock")) == 0, 10, "it serves")
        wait_for_judgement(running, pids)
        shared = SemLock._rebuild(0, 1, 1, f"{name}-shared")
        (tmp_path / "go").touch()
        run = running.result(60).check(0)
        assert {name for name, pid in pids.items() if is_alive(pid)} == set(LEFT), run.describe()
        # Of the semaphores only the one that the training has made and nobody uses is removed.
        gone = run.of_type("tree_gone")
        assert gone[0]["shared_memory_removed"] == [f"sem.{name[1:]}-own"], run.describe()
        kept = {path.name.rpartition("-")[2] for path in Path("/dev/shm").glob(f"sem.{name[1:]}*")}
        assert kept == {"older", "shared"}, shared
        assert len(gone) == 2, run.describe()
        assert "the keeper did not exit" not in run.stderr, "the keeper waits for who stays"
        for event in gone:  # also those of the attempt before
            left = {one["process"]["pid"] for one in event["left"]}
            assert {pids[name] for name in LEFT} <= left, run.describe()
        assert f"(pid {pids['plain']}): it holds nothing of the training" in run.stderr
        assert f"to stop it: kill {pids['named']}" in run.stderr
        status = run_wtrain("status", "--json", cwd=tmp_path).json()
        assert {pids[name] for name in LEFT} <= {one["process"]["pid"] for one in status["left"]}
        report = run_wtrain("report", cwd=tmp_path).stdout
        assert f"(pid {pids['served']})" in report, report
        found = run_wtrain("clean", "--json", cwd=tmp_path).json()
        listed = {one["what"]: one for one in found["leftovers"]}
        assert listed[f"pid {pids['plain']}"]["removable"] is False


def test_without_sessions_only_a_named_daemon_lives_on(tmp_path: Path) -> None:
    """What psutil alone tells is not enough to leave anybody but whom the user has named."""
    with started(tmp_path, WTRAIN_SYSTEM="portable") as (running, pids, _):
        wait_until(lambda: judged(running) == {pids["named"]: "leave"}, 30, "it is judged")
        (tmp_path / "go").touch()
        run = running.result(60).check(0)
        assert {name for name, pid in pids.items() if is_alive(pid)} == {"named"}, run.describe()


@pytest.mark.slow
@pytest.mark.needs_open_files
def test_who_adopts_the_run_knows_them(tmp_path: Path) -> None:
    """Also by what could be seen only while the training lived: nobody watched when it crashed."""
    with started(tmp_path) as (running, pids, _), socket.socket(socket.AF_UNIX) as client:
        wait_until(lambda: client.connect_ex(str(tmp_path / "server.sock")) == 0, 10, "it serves")
        wait_for_judgement(running, pids)
        running.process.kill()
        running.process.wait(10)
        (tmp_path / "go").touch()
        wait_until(
            lambda: list(tmp_path.glob("wtrain-runs/*/attempts/0001/exit.json")), 30, "crash"
        )
        run = run_wtrain("adopt", cwd=tmp_path).check(0)
        assert {name for name, pid in pids.items() if is_alive(pid)} == set(LEFT), run.describe()
