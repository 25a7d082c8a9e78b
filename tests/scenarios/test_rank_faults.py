"""Several ranks on one machine, one of which misbehaves: caught, explained, brought to the end."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_blames,
    assert_brought_home,
    assert_evidence_came_first,
    assert_hang_was_handled,
    assert_never_killed,
    assert_tree_is_gone,
    last_line,
)
from tests.support import (
    PROGRAMS,
    CompletedRun,
    members_of,
    run_fast,
    run_wtrain,
    sentence,
    signals_of,
    start_fast,
    wait_until,
)

pytestmark = pytest.mark.timeout(300)

RESUME = ("--resume-arg", "--resume {checkpoint}")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SLOW = pytest.mark.slow


def command(launcher: str, program: str, *args: str) -> list[str]:
    """Two ranks of a program of the zoo."""
    path = str(PROGRAMS / program)
    match launcher:
        case "torchrun":
            return [sys.executable, *TORCHRUN, path, *args]
        case "spawn":
            return [sys.executable, path, *args, "--spawn", "2"]
        case _:
            return ["sh", str(PROGRAMS / "two_ranks.sh"), sys.executable, path, *args]


def run_job(cwd: Path, launcher: str, program: str, *args: str) -> CompletedRun:
    return run_fast(cwd, command(launcher, program, *args), *RESUME, timeout_s=280)


EARLY = ("rank-left-early",)
MISMATCH = ("collective-mismatch", "gloo-timeout")
"""Two ranks that wait in different operations: which of them is wrong, no evidence tells."""
HANGS = {
    # fault, launcher: the families that fit, and which rank it is; None: the evidence cannot tell
    ("receive", "spawn"): (MISMATCH, None),
    ("sleep", "spawn"): (EARLY, 1),
    ("leave", "torchrun"): (MISMATCH, None),
    ("hold-gil", "spawn"): (("gil-deadlock",), 1),
    ("worker", "torchrun"): (("dataloader-worker-stuck",), 1),
    ("hang-in-save", "torchrun"): (EARLY, 0),
}


@SLOW
@pytest.mark.parametrize(("fault", "launcher"), HANGS)
def test_a_rank_that_hangs(fault: str, launcher: str, tmp_path: Path) -> None:
    """Every process is dumped, the launcher held still, the ranks asked, and it goes on."""
    families, culprit = HANGS[fault, launcher]
    workers = 2 if fault == "worker" else 0
    more = ("--workers", "1") if workers else ()
    run = run_job(tmp_path, launcher, "rank_faults.py", fault, *more)
    assert_brought_home(run)
    assert_hang_was_handled(run)
    assert run.only("stall_declared")["basis"] in ("quiet", "proven"), run.describe()
    rows = run.of_type("evidence_collected")[0]["processes"]
    roles = Counter(row["role"] for row in rows if row["captured"])
    helpers = int(launcher == "spawn")  # the resource tracker
    wanted = {"launcher": 1, "rank": 2, "worker": workers, "other": helpers}
    assert roles == Counter(wanted), run.describe()
    signals = [(one["role"], one["signal"]) for one in signals_of(run.events)]
    assert signals[0] == ("launcher", signal.SIGSTOP), run.describe()
    rejected = [Path(event["path"]).name for event in run.of_type("checkpoint_rejected")]
    assert rejected == (["step-000030.pt"] if fault == "hang-in-save" else [])
    role = "worker" if workers else "rank"
    (diagnosed,) = run.of_type("stall_explained")
    surely = culprit is not None
    assert_blames(diagnosed, culprit if surely else 1, families, surely=surely, role=role)
    if fault == "sleep":
        (victim,) = (one for one in diagnosed["explanation"]["victims"] if one["who"]["rank"] == 0)
        assert (victim["how"]["op"], victim["how"]["inside"]) == ("allreduce", "ddp")


CRASHES = (
    *(("die-in-save", "torchrun"), ("fail", "spawn"), ("die", "torchrun")),
    *(("die", "spawn"), ("exit", "spawn")),
)


@SLOW
@pytest.mark.parametrize(("fault", "launcher"), CRASHES)
def test_a_rank_that_crashes(fault: str, launcher: str, tmp_path: Path) -> None:
    """Its launcher ends the others by itself: that is a crash and not a stall."""
    run = run_job(tmp_path, launcher, "rank_faults.py", fault)
    assert_brought_home(run)
    assert not run.of_type("stall_declared"), run.describe()
    bundle = run.of_type("evidence_collected")[0]
    assert bundle["why"] == "crash"
    words = {
        "fail": "CRASH 0001: rank 1 raised RuntimeError at rank_faults.py:",
        "die": "CRASH 0001: rank 1 was killed by SIGKILL",
    }
    assert words.get(fault, "CRASH 0001: ") in run.stderr, run.describe()
    rejected = [Path(event["path"]).name for event in run.of_type("checkpoint_rejected")]
    assert rejected == (["step-000030.pt"] if fault == "die-in-save" else []), run.describe()


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        pytest.param("fail", "ended with an exception", marks=SLOW),
        pytest.param(
            "die", "was killed by SIGKILL", marks=(SLOW, pytest.mark.needs_exit_status_of_others)
        ),
    ],
)
def test_a_rank_that_failed_and_nobody_reacts(fault: str, how: str, tmp_path: Path) -> None:
    """Rank 0 waits for a part that never comes; no limit has to pass to know that."""
    run = run_job(tmp_path, "shell", "rank_shards.py", fault)
    assert_brought_home(run)
    assert_evidence_came_first(run)
    ended = run.of_type("rank_ended")[0]["end"]
    assert (ended["rank"], ended["world_size"]) == (1, 2)
    declared = run.only("stall_declared")
    assert (declared["basis"], declared["ranks"]) == ("rank-gone", [1]), run.describe()
    assert f"rank 1 (pid {ended['pid']}) {how} at step 25; rank 0 made no" in sentence(
        declared["why"]
    )
    rows = run.of_type("evidence_collected")[0]["processes"]
    (gone,) = [row for row in rows if row["pid"] == ended["pid"]]
    assert (gone["role"], gone["rank"], gone["captured"]) == ("rank", 1, False)
    assert gone["why_not"] == f"it {how} at step 25"


AFTER_MANY = """\
import threading, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(2200):
    dist.all_reduce(torch.ones(4))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
if dist.get_rank() == 1:
    threading.Event().wait(3600)
dist.all_reduce(torch.ones(4))
"""


@SLOW
def test_a_hang_after_many_collectives(tmp_path: Path) -> None:
    """torch puts 2,000 of them into words for each look: that is no work of the training's."""
    script = tmp_path / "after_many.py"
    script.write_text(AFTER_MANY)
    job = (sys.executable, *TORCHRUN, str(script))
    run = run_fast(tmp_path, job, "--on-stall", "stop", timeout_s=200)
    names = [event["type"] for event in run.events]
    declared = names.index("stall_declared")
    looked = names.index("looked")
    assert looked < declared, run.describe()
    assert "suspicion_ended" not in names[looked:declared], run.describe()


@SLOW
@pytest.mark.needs_exit_status_of_others
def test_a_rank_that_left_early_and_well(tmp_path: Path) -> None:
    """Nobody can know at once whether rank 0 only finishes: it gets that time, and no more."""
    run = run_job(tmp_path, "shell", "rank_shards.py", "leave")
    assert_brought_home(run)
    declared = run.only("stall_declared")
    assert (declared["basis"], declared["ranks"]) == ("rank-gone", [1]), run.describe()
    assert "ended with exit code 0 at step 25" in sentence(declared["why"])
    assert 150 <= declared["age_s"] < 180, run.describe()


@pytest.mark.slow
def test_rank_0_works_on_after_the_others(tmp_path: Path) -> None:
    """An upload of rank 0 that waits in silence, over every budget, is left in peace."""
    run = run_job(tmp_path, "shell", "rank_shards.py", "none", "--merge-s", "12").check(0)
    assert_never_killed(run)
    assert_tree_is_gone(run)
    assert [event["end"]["rank"] for event in run.of_type("rank_ended")] == [1]
    assert run.of_type("suspected"), "it was silent for so long that it had to be looked at"
    finished = run.only("run_finished")
    assert (finished["outcome"], finished["warning"]) == ("succeeded", None)


@SLOW
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_rank_0_saves_for_a_minute(launcher: str, tmp_path: Path) -> None:
    """With the default settings, after the process group is gone and the other rank has ended."""
    job = command(launcher, "rank_faults.py", "none", "--last-save-s", "60")
    run = run_wtrain("run", "--", *job, cwd=tmp_path, timeout_s=200).check(0)
    assert_never_killed(run)
    assert_tree_is_gone(run)
    assert last_line(run.stdout) == "finished step=60"


@SLOW
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_rank_that_is_stopped_for_a_while(launcher: str, tmp_path: Path) -> None:
    """Somebody looks at it with a debugger: said, long over every budget, and nobody is ended."""
    running = start_fast(tmp_path, command(launcher, "rank_faults.py", "none", "--steps", "400"))
    running.wait_for("first_step", 90)
    pids = wait_until(
        lambda: [one.pid for one in members_of(running.events) if one.rank == 1],
        30,
        "rank 1 is recorded",
    )
    pid = pids[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        noticed = running.wait_for("noticed", 30)
        assert (noticed["kind"], noticed["pids"]) == ("stopped", [pid])
        later = noticed["mono"] + 15.0
        running.wait_for("progress", 60, lambda event: event["mono"] > later)
    finally:
        os.kill(pid, signal.SIGCONT)
    run = running.result(150).check(0)
    assert_never_killed(run)
    assert_tree_is_gone(run)
    assert last_line(run.stdout) == "finished step=400"
