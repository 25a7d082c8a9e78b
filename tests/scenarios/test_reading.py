"""What can be read about a run: while it runs, after it, and with its supervisor dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    RunningWtrain,
    is_alive,
    program_command,
    run_fast,
    run_wtrain,
    start_fast,
    wait_until,
)

RESUME = ("--resume-arg", "--resume {checkpoint}")
PROCESS_KEYS = {"pid", "start", "role", "rank", "worker", "state", "captured", "why_not"}


def status(cwd: Path) -> dict[str, Any]:
    """The answer of `wtrain status --json`, and its exit code: 0 runs, 3 ended, 4 unwatched."""
    told = run_wtrain("status", "--json", cwd=cwd)
    answer = told.json()
    alive = answer["supervisor"]["alive"]
    told.check(3 if answer["state"] == "finished" else 0 if alive else 4)
    return answer


def start_training(cwd: Path, *args: str) -> RunningWtrain:
    """A run that has taken its first step and written a progress event."""
    command = program_command("loader_fork_lock.py", *args)
    running = start_fast(cwd, command, "--name", "reading", *RESUME)
    running.wait_for("first_step", 60)
    running.wait_for("progress", 30, lambda event: (event["progress"]["step"] or 0) > 0)
    return running


@pytest.mark.timeout(170)
def test_during_a_run_and_with_its_supervisor_dead(tmp_path: Path) -> None:
    """Live numbers while it runs; with the supervisor dead they are old and called so."""
    running = start_training(tmp_path, "--hang-at", "-1", "--steps", "5000")
    now = status(tmp_path)
    assert (now["state"], now["outcome"], now["exit_code"]) == ("running", None, None)
    assert now["supervisor"] == {"pid": running.pid, "alive": True, "blind_s": None}
    assert now["progress"]["step"] > 0
    (rank,) = now["ranks"]
    assert rank["rank"] == 0
    assert len(rank["workers"]) == 2
    assert rank["phase"] in ("train", "checkpoint"), "it saves at every fifth step"
    assert now["can_be_asked_to_save"] is False
    listed = run_wtrain("ps", "--json", cwd=tmp_path).check(0).json()
    assert [run["run_id"] for run in listed["runs"]] == [now["run_id"]]
    for command in (("status",), ("ps",), ("stalls",)):
        told = run_wtrain(*command, cwd=tmp_path).check(0)
        assert (told.stdout + told.stderr).strip()
    os.kill(running.pid, signal.SIGKILL)
    running.result(10)
    dead = status(tmp_path)
    assert dead["supervisor"] == {"pid": running.pid, "alive": False, "blind_s": None}
    assert dead["outcome"] is None
    assert "adopt" in run_wtrain("status", cwd=tmp_path).check(4).stdout
    stopped = run_wtrain("stop", "reading", cwd=tmp_path)
    assert stopped.returncode in {0, 77}, stopped.describe()
    after = status(tmp_path)
    assert (after["state"], after["outcome"]) == ("finished", "stopped"), stopped.describe()
    assert not is_alive(rank["pid"])


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_after_a_hang(tmp_path: Path) -> None:
    """Afterwards status, stalls, show and logs tell of the stall, its processes and its cause."""
    running = start_training(tmp_path)
    run = running.result(120).check(0)
    after = status(tmp_path)
    assert (after["state"], after["outcome"], after["exit_code"]) == ("finished", "succeeded", 0)
    assert (after["attempt"], after["restarts"]) == (2, 1)
    assert after["progress"]["step"] == 40
    assert "num-workers-0" in after["remedies"]
    assert Path(after["checkpoint"]["path"]).name.startswith("step-0000")
    stall = after["last_stall"]
    assert stall["explanation"]["because"]
    assert Path(stall["dir"]).is_dir()

    (row,) = run_wtrain("stalls", "--json", cwd=tmp_path).check(0).json()["stalls"]
    assert row.keys() >= {"id", "dir", "at", "attempt", "why", "processes", "captured", "family"}
    assert row["id"] == stall["id"]
    assert row["family"] == stall["explanation"]["because"]["family"]
    assert "__getitem__" in run_wtrain("stalls", cwd=tmp_path).check(0).stdout
    shown = run_wtrain("show", "--json", cwd=tmp_path).check(0).json()
    assert shown["schema_version"] == 1
    words = run_wtrain("show", cwd=tmp_path).check(0).stdout
    assert "__getitem__" in words
    assert str(stall["explanation"]["root"]["who"]["pid"]) in words
    for process in run.only("evidence_collected")["processes"]:
        assert process.keys() >= PROCESS_KEYS
    logs = run_wtrain("logs", cwd=tmp_path).check(0)
    assert "finished step=40" in logs.stdout
    first = run_wtrain("logs", "--attempt", "1", cwd=tmp_path).check(0)
    assert "finished" not in first.stdout
    assert run_wtrain("logs", "-n", "1", cwd=tmp_path).check(0).stdout.count("\n") == 1
    listed = run_wtrain("checkpoints", "checkpoints", "--json", cwd=tmp_path).check(0).json()
    assert Path(listed["newest_whole"]).name == "step-000040.pt"
    assert run_wtrain("ps", "--json", cwd=tmp_path).check(0).json()["runs"] == []
    assert len(run_wtrain("ps", "-a", "--json", cwd=tmp_path).check(0).json()["runs"]) == 1


def test_detached(tmp_path: Path) -> None:
    """`run -d` returns once launched; the run goes on and can be stopped from outside."""
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "5000")
    started = run_fast(tmp_path, command, "-d", timeout_s=30).check(0)
    assert status(tmp_path)["state"] in {"starting", "running"}, started.describe()
    run_wtrain("stop", "--now", cwd=tmp_path).check(0)
    wait_until(lambda: status(tmp_path)["state"] == "finished", 40, "the run is stopped", 0.5)
    assert status(tmp_path)["exit_code"] == 77
    refused = run_wtrain("run", "-d", "--", "no-such-command-here", cwd=tmp_path).check(78)
    assert "no-such-command-here" in refused.stderr
