"""What goes on after the script has exited with 0: the training, an uploader, or idle processes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support import (
    FAST_LIMITS,
    CompletedRun,
    changed,
    program_command,
    run_wtrain,
    signals_of,
    start_fast,
    wait_until,
    write_fast_config,
)


def run_outliving(
    cwd: Path, *words: str, program: str = "outlives.py", most_s: float = 60, timeout_s: float = 90
) -> CompletedRun:
    timing = {"outlive_s": 1, "outlive_working_s": most_s}
    config = write_fast_config(cwd, limits=changed(FAST_LIMITS, timing=timing))
    options = ("--config", str(config), "--on-crash", "stop")
    words = ("run", *options, "--", *program_command(program, *words))
    return run_wtrain(*words, cwd=cwd, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("end", "code"), [("return", 0), ("raise", 1), ("kill", 137), ("_exit", 0)]
)
def test_a_training_that_daemonizes_itself_is_followed_to_its_end(
    tmp_path: Path, end: str, code: int
) -> None:
    """All its steps are made, and its end counts; one that nobody saw is no success."""
    run = run_outliving(tmp_path, "daemon", end)
    assert (tmp_path / "daemon.ends").exists(), run.describe()
    assert signals_of(run.events) == [], run.describe()
    assert "its training continues" in run.stderr
    (exited,) = run.of_type("attempt_exited")
    assert exited["step"] == 60, run.describe()
    if exited["how_known"] == "gone":
        code = 75
    assert run.returncode == code, run.describe()


def test_a_training_that_a_script_has_put_into_another_session_is_followed(tmp_path: Path) -> None:
    """`setsid python train.py &` and the end of the script: it loads a while, then trains."""
    words = shlex.join(program_command("outlives.py", "slowly"))
    script = f"setsid {words} > train.log 2>&1 < /dev/null &"
    running = start_fast(tmp_path, ("sh", "-c", script))
    wait_until((tmp_path / "slowly").exists, 30, "it trains")
    wait_until(lambda: "goes-on" in str(running.events), 30, "it is followed")
    run_wtrain("stop", cwd=tmp_path, timeout_s=60)
    run = running.result(30).check(77)
    assert (tmp_path / "saved").exists(), run.describe()


def test_an_uploader_that_works_is_waited_for(tmp_path: Path) -> None:
    """Longer than what idles, and it is said."""
    run = run_outliving(tmp_path, "uploader", "8").check(0)
    assert (tmp_path / "uploaded").exists(), run.describe()
    assert signals_of(run.events) == []
    assert "waiting up to 1 min" in run.stderr, run.stderr
    assert "upload.bin" in run.stderr, run.stderr


def test_who_is_killed_at_last_is_named_with_its_files(tmp_path: Path) -> None:
    """An uploader that takes longer than the limit; the run ends with a warning."""
    run = run_outliving(tmp_path, "uploader", "600", most_s=4).check(0)
    (finished,) = run.of_type("run_finished")
    assert finished["warning"]["code"] == "outlived-killed", run.describe()
    warning = next(line for line in run.stderr.splitlines() if "that still ran" in line)
    assert "upload.bin" in warning, warning
    assert "/s read and written" in warning, warning


@pytest.mark.parametrize("kind", ["idle", "server"])
def test_what_idles_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """Not even one that had made steps, beside a training that has finished."""
    run = run_outliving(tmp_path, kind).check(0)
    assert run.of_type("run_finished")[0]["warning"]["code"] == "outlived-killed", run.describe()
    assert run.of_type("stall_declared") == []
    assert "idle" in run.stderr, run.stderr


def test_a_kill_below_a_librarys_own_launcher_is_explained(tmp_path: Path) -> None:
    """As `trl sft` starts the script: its child is the rank."""
    run = run_outliving(tmp_path, "kill", program="library_launcher.py").check(1)
    crash = next(line for line in run.stderr.splitlines() if "CRASH" in line)
    assert "rank 0 was killed by SIGKILL" in crash, run.describe()
    assert run.of_type("attempt_exited")[0]["step"] == 10, run.describe()


@pytest.mark.slow
def test_a_librarys_launcher_that_freezes_after_the_last_step_has_succeeded(tmp_path: Path) -> None:
    """All steps are made, so nothing is started again."""
    run = run_outliving(tmp_path, "freeze", program="library_launcher.py", timeout_s=300).check(0)
    (finished,) = run.of_type("run_finished")
    assert finished["warning"]["code"] == "finished-but-hung", run.describe()
    assert len(run.of_type("attempt_launching")) == 1
