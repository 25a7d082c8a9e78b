"""A hang before the first step names its place: in status, in the bundle and in the report."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, last_line
from tests.support import (
    FAST_LIMITS,
    PROGRAMS,
    CompletedRun,
    changed,
    program_command,
    run_wtrain,
    sentence,
    start_fast,
    wait_until,
    write_fast_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

WAITS = {"proven_early_s": 6, "unknown_s": 6, "unknown_early_s": 6, "cost_most_s": 6, "poll_s": 6}
SOON = changed(FAST_LIMITS, patience=WAITS)


def bundle_of(run: CompletedRun) -> Path:
    """The folder of the first bundle."""
    return Path(run.of_type("evidence_collected")[0]["dir"])


def test_inside_a_logger(tmp_path: Path) -> None:
    """One process: the place is told while it hangs, kept with the evidence, and in the report."""
    write_fast_config(tmp_path, limits=SOON)
    running = start_fast(tmp_path, program_command("logger_hang.py"))
    running.wait_for("first_beat", 60)

    def told() -> str | None:
        text = run_wtrain("status", "--milestones", cwd=tmp_path).stdout
        return text if "is inside wandb.init for" in text else None

    text = wait_until(told, 20, "status names the place")
    assert "arguments parsed" in text
    assert "local rank" in text or "rank 0, pid" in text
    answer = run_wtrain("status", "--json", cwd=tmp_path).json()
    (rank,) = answer["milestones"]
    assert rank["inside"] == ["wandb.init"]
    run = running.result(140).check(0)
    assert_ended_in_order(run)
    stall = run.of_type("stall_declared")[0]
    assert (stall["phase"], stall["attempt"]) == ("startup", 1)
    assert "is inside wandb.init for" in (bundle_of(run) / "SUMMARY.md").read_text()
    assert last_line(run.stdout).startswith("finished step=20 ")
    events = run.of_type("milestones")
    assert events[0]["seq"] < stall["seq"]
    assert events[0]["ranks"][0]["milestones"][-1]["name"] == "wandb.init"
    names = [one["name"] for one in events[-1]["ranks"][0]["milestones"]]
    assert {"import torch", "wandb.init", "first step", "exit"} <= set(names), names
    report = run_wtrain("report", cwd=tmp_path).check(0)
    assert "rank 0 is inside wandb.init for" in report.stdout
    after = run_wtrain("status", "--milestones", cwd=tmp_path)
    assert "first step" in after.stdout, after.describe()


def test_one_of_two_ranks(tmp_path: Path) -> None:
    """Under torchrun the sentence tells who is inside, and who has passed it."""
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    program = (str(PROGRAMS / "logger_hang.py"), "--hang-rank", "1")
    running = start_fast(tmp_path, (*launch, *program))
    running.wait_for("first_beat", 100)

    def told() -> str | None:
        text = run_wtrain("status", "--milestones", cwd=tmp_path).stdout
        return text if "rank 0 is inside init_process_group for" in text else None

    text = wait_until(told, 60, "status names both places", poll_s=0.5)
    assert "rank 1 is inside wandb.init for" in text
    assert "rank 0 passed it after" in text
    assert "rank 1 has not reached it" in text
    dumped = run_wtrain("dump", cwd=tmp_path).check(0)
    assert "rank 1 is inside wandb.init for" in dumped.stdout
    run_wtrain("stop", "--now", cwd=tmp_path).check(0)
    run = running.result(30)
    assert_ended_in_order(run)
    lines = run_wtrain("logs", "--milestones", cwd=tmp_path).check(0).stdout.splitlines()
    form = re.compile(
        r"\[\d\d:\d\d:\d\d\.\d{3}\]\[\+(\d+\.\d{3})s\]\[R([01])/2\]\[LR\2\]\[PID:\d+\] (\d+ .+)"
    )
    found = [match.groups() for match in map(form.fullmatch, lines) if match is not None]
    assert len(found) == len(lines) > 6, lines
    assert sorted(found, key=lambda one: float(one[0])) == found
    numbers = {(rank, what.split()[0]) for _, rank, what in found if " arguments parsed" in what}
    assert {rank for rank, _ in numbers} == {"0", "1"}
    assert len({number for _, number in numbers}) == 1, lines
    assert any(rank == "1" and "wandb.init, inside for" in what for _, rank, what in found), lines
    of_one = run_wtrain("logs", "--milestones", "--rank", "1", cwd=tmp_path).stdout.splitlines()
    assert of_one == [line for line in lines if "[R1/2]" in line]
    assert "rank 1 is inside wandb.init for" in run_wtrain("report", cwd=tmp_path).stdout


def test_a_library_that_is_too_new(tmp_path: Path) -> None:
    """Its hook is not armed: status says so, in words and in JSON, and training goes on."""
    run = run_wtrain(
        "run", "--", *program_command("logger_hang.py", "--hang-rank=-1"), cwd=tmp_path,
        env={"FAKE_WANDB_VERSION": "9.9"},
    ).check(0)  # fmt: skip
    event = run.only("hook_not_armed")
    why = "wandb 9.9 is outside 0.18 to below 1.0"
    assert (event["hook"], event["status"], sentence(event["why"])) == ("wandb", "skipped", why)
    assert why in run.stderr
    answer = run_wtrain("status", "--json", cwd=tmp_path).json()
    assert answer["hooks"] == [
        {"hook": "wandb", "status": "skipped", "why": {"code": "said", "problem": why, "text": why}}
    ]
    assert why in run_wtrain("status", cwd=tmp_path).stdout.replace("\n", " ").replace("  ", " ")
