"""A job that a spooler has started for the training is another training: nobody touches it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support import (
    PROGRAMS,
    children_of,
    end_process,
    is_alive,
    members_of,
    of_type,
    program_command,
    run_wtrain,
    signals_of,
    start_fast,
    start_program,
    wait_until,
    write_fast_config,
)


@pytest.mark.parametrize("end", ["by itself", "stop", "keeper killed"])
def test_a_successor_in_a_spooler_lives_on(tmp_path: Path, end: str) -> None:
    """It has the token, makes steps and writes beside our checkpoints; status shows one rank."""
    place = str(tmp_path / "spool")
    spooler = start_program("spooled.py", "spool", place, cwd=tmp_path)
    config = write_fast_config(tmp_path)
    config.write_text(config.read_text().replace("recovery:", "recovery:\n  checkpoints: [saves]"))
    job = [sys.executable, str(PROGRAMS / "spooled.py"), "train", place]
    try:
        wait_until(Path(place).exists, 10, "the spooler listens")
        running = start_fast(tmp_path, program_command("spooled.py", "train", place, *job))
        told = tmp_path / "job.pid"
        wait_until(told.exists, 30, "the job is submitted")
        pid = int(told.read_text())
        journal = tmp_path / "journal.txt"
        wait_until(lambda: "successor begins" in journal.read_text(), 30, "it trains")
        assert pid in children_of(spooler.pid)
        if end == "by itself":
            (tmp_path / "training.end").touch()
        elif end == "stop":
            text = run_wtrain("status", cwd=tmp_path).check(0).stdout
            assert text.lower().count("rank 0") <= 1, text
            run_wtrain("stop", cwd=tmp_path, timeout_s=60)
        else:
            keeper = of_type(running.events, "attempt_launched")[0]["keeper_pid"]
            os.kill(keeper, signal.SIGKILL)
            run_wtrain("stop", "--now", cwd=tmp_path, timeout_s=60)
        run = running.result(60).check(0 if end == "by itself" else 77)
        assert pid not in {member.pid for member in members_of(run.events)}, run.describe()
        assert pid not in {one["pid"] for one in signals_of(run.events)}, run.describe()
        assert "successor begins in attempt 0\n" in journal.read_text()
        assert is_alive(pid)
        (tmp_path / "successor.end").touch()
        wait_until(lambda: "successor ends" in journal.read_text(), 10, "it comes to its end")
    finally:
        end_process(spooler)
