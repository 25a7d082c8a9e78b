"""What the report counts, held against the journal of the training itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import CompletedRun, program_command, run_fast, run_wtrain, start_fast

FOUND = ("--checkpoints", "checkpoints")


def report_of(cwd: Path, *options: str, trouble: str, at: int) -> tuple[CompletedRun, dict]:
    """A supervised training with planted trouble, and the numbers of its report."""
    command = program_command("chaos_light.py", "beats", "--trouble", trouble, "--at", str(at))
    run = run_fast(cwd, command, *options)
    return run, run_wtrain("report", "--json", cwd=cwd).check(0).json()


def steps_done_again(cwd: Path) -> int:
    """By the journal: how often a step was done that had been done before."""
    lines = (line.split() for line in (cwd / "journal.txt").read_text().splitlines())
    done = Counter(int(number) for _, _, _, word, number, *_ in lines if word == "step")
    return sum(done.values()) - len(done)


@pytest.mark.parametrize(("at", "options", "again"), [(23, FOUND, 3), (25, FOUND, 0), (23, (), 23)])
def test_steps_done_again_are_those_of_the_journal(
    at: int, options: tuple[str, ...], again: int, tmp_path: Path
) -> None:
    """It saves at every fifth step; without --checkpoints it begins from the start."""
    run, report = report_of(tmp_path, *options, trouble="crash", at=at)
    run.check(0)
    assert steps_done_again(tmp_path) == again
    assert report["time"]["steps_redone"] == again, run.describe()
    if not again:
        assert report["time"]["spent_s"]["redone"] == 0


def test_a_hang_under_observe_is_no_productive_time(tmp_path: Path) -> None:
    """20 steps of 0.05 s; the rest is start, hang and stop."""
    command = program_command("chaos_light.py", "beats", "--trouble", "hang", "--at", "20")
    run = start_fast(tmp_path, command, "--observe")
    run.wait_for("would_have_killed", 60)
    run_wtrain("stop", "--now", cwd=tmp_path, timeout_s=60).check(0)
    run.result(30)
    spent = run_wtrain("report", "--json", cwd=tmp_path).check(0).json()["time"]["spent_s"]
    assert spent["kept"] < 3 < spent["silence"], spent


def test_the_printed_command_has_the_options_of_the_run(tmp_path: Path) -> None:
    run, report = report_of(tmp_path, "--name", "my job", trouble="none", at=0)
    run.check(0)
    assert report["run_again"].startswith(
        f"wtrain run --config {tmp_path}/fast.yaml --name 'my job' -- "
    )
