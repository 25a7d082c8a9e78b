"""Crashes: evidence, restart from the newest valid checkpoint, limits, and honest exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, assert_log_is_sound, kills, last_line
from tests.support import (
    PROGRAMS,
    program_command,
    run_fast,
    run_program,
    run_wtrain,
    script,
    sentence,
    small_disk,
    write_fast_config,
)
from watchdog_train.checkpoints.pickle_head import counters
from watchdog_train.core.fold.evolve import replay
from watchdog_train.report.document import Document
from watchdog_train.store.log_reading import read_events

ZOO = {"PYTHONPATH": str(PROGRAMS)}
AUTO = ("--resume-arg", "auto")
RESUME = ("--resume-arg", "--resume {checkpoint}")
WAYS = {"exception": (1, None), "exit": (9, None), "kill": (None, 9), "segv": (None, 11)}


@pytest.mark.parametrize(
    "how",
    ["exception", *(pytest.param(x, marks=pytest.mark.slow) for x in ("kill", "exit", "segv"))],
)
def test_crash_once(how: str, tmp_path: Path) -> None:
    """A training that crashes once goes on from its checkpoint and succeeds.

    The option that takes the checkpoint is found in the script's own parser.
    """
    run = run_fast(tmp_path, program_command("crash_at_step.py", how), *AUTO).check(0)
    assert_ended_in_order(run)
    first, second = run.of_type("attempt_exited")
    assert (first["code"], first["signal"]) == WAYS[how]
    assert (second["code"], second["signal"]) == (0, None)
    bundle = run.only("evidence_collected")
    assert bundle["why"] == "crash"
    chosen = run.only("checkpoint_chosen")
    assert Path(chosen["path"]).name == "step-000010.pt"
    plan = run.of_type("plan_made")[-1]["plan"]
    assert plan["argv"][-2:] == ["--resume", chosen["path"]], plan
    assert run.only("resume_verified")["ok"], run.describe()
    assert last_line(run.stdout).startswith("finished step=20 ")
    crash = bundle["crash"]
    assert (crash["code"], crash["signal"]) == WAYS[how]
    assert not run.of_type("backing_off"), run.describe()
    if how == "kill":
        assert crash["sender"] in ("outside", "unknown")
        assert "rank 0 was killed by SIGKILL" in run.stderr
    if how == "exception":
        summary = next(run.run_dir.glob("stalls/*/log-tail.txt")).read_text("utf-8")
        assert "planted failure" in summary


@pytest.mark.parametrize(
    ("how", "chosen"),
    [
        ("rename", ["step_00005/state.pt", "step_00010/state.pt"]),
        pytest.param("epochs", ["epoch0-step5.pt", "epoch1-step0.pt"], marks=pytest.mark.slow),
    ],
)
def test_the_newest_own_checkpoint_is_found(how: str, chosen: list[str], tmp_path: Path) -> None:
    """Renamed once it is complete; or named by a step that begins anew, beside another's files."""
    run = run_fast(tmp_path, program_command("renames_its_saves.py", how), *RESUME).check(0)
    paths = [event["path"] for event in run.of_type("checkpoint_chosen")]
    assert paths == [str(tmp_path / "checkpoints" / name) for name in chosen], run.describe()
    assert last_line(run.stdout).startswith("finished step=20 ")
    assert not run.of_type("checkpoint_not_kept"), run.describe()


AFTER_THE_SCAN = """
import runpy
from watchdog_train.supervisor import tasks

real = tasks.module
WAIT = 'until [ -e wtrain-runs/latest/attempts/0001/survey.json ]; do sleep 0.05; done; exec "$@"'

def module(name):
    argv = real(name)
    return ("sh", "-c", WAIT, "sh", *argv) if name.endswith("evidence.collect") else argv

tasks.module = module
runpy.run_path(".limits/wtrain")
"""


def test_checkpoints_are_scanned_while_evidence_is_collected(tmp_path: Path) -> None:
    """A collector that waits for the scan's answer gets it, and brings the evidence home."""
    command = program_command("crash_at_step.py", "exception")
    wtrain = (sys.executable, "-c", AFTER_THE_SCAN)
    run = run_fast(tmp_path, command, *AUTO, wtrain=wtrain).check(0)
    collected = run.only("evidence_collected")
    assert collected["crash"]["exception"]["message"] == "planted failure", collected
    # Nothing is planned before evidence is on disk and the tree is gone.
    plan = run.of_type("plan_made")[-1]
    assert collected["seq"] < run.of_type("tree_gone")[0]["seq"] < plan["seq"], run.describe()
    assert plan["plan"]["checkpoint"]["step"] == 10


SHORT_OF_FILES = """
import errno, runpy
from watchdog_train.supervisor.hands import local

real, calls = local.start_keeper, []

def start_keeper(*args, **more):
    calls.append(args)
    if len(calls) in (2, 3):  # as the system answers when the limit was lowered a moment before
        raise OSError(errno.EMFILE, "Too many open files")
    return real(*args, **more)

local.start_keeper = start_keeper
runpy.run_path(".limits/wtrain")
"""


def test_a_restart_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    """It is put off, under its plan; nobody takes the command for one that cannot be started."""
    command = program_command("crash_at_step.py", "exception")
    wtrain = (sys.executable, "-c", SHORT_OF_FILES)
    run = run_fast(tmp_path, command, *AUTO, wtrain=wtrain).check(0)
    assert_ended_in_order(run)
    assert [sentence(one["why"]) for one in run.of_type("launch_postponed")] == [
        "Too many open files"
    ] * 2
    assert [one["plan"]["attempt"] for one in run.of_type("attempt_launching")] == [1, 2, 2, 2]
    assert [one["attempt"] for one in run.of_type("attempt_launched")] == [1, 2]
    assert "1 restart, 1 crash" in run.stderr
    assert "the start failed (Too many open files); trying again" in run.stderr
    events = read_events(run.run_dir / "events.jsonl").events
    assert [
        one.attempt for one, _ in Document(state=replay(events), events=tuple(events)).attempts
    ] == [1, 2]


SCAN_KILLED = """
import os, runpy, signal
from watchdog_train.supervisor.children import ChildTable

real, times = ChildTable.spawn, [int(os.environ["SCANS_KILLED"])]

def spawn(self, argv, **options):
    child = real(self, argv, **options)
    if "watchdog_train.checkpoints.survey" in argv and times[0]:
        times[0] -= 1
        os.kill(child.pid, signal.SIGKILL)  # as the OOM killer does
    return child

ChildTable.spawn = spawn
runpy.run_path(".limits/wtrain")
"""


@pytest.mark.parametrize(("times", "code"), [(2, 0), (99, 75)])
def test_a_killed_scan_is_no_reason_to_begin_at_step_0(
    times: int, code: int, tmp_path: Path
) -> None:
    """Killed twice: the newest save that the hooks noted is used. Always: 75, and no attempt."""
    config = write_fast_config(tmp_path)
    config.write_text(config.read_text().replace("recovery:", "recovery:\n  room_wait_s: 0"))
    command = program_command("crash_at_step.py", "exception")
    wtrain = (sys.executable, "-c", SCAN_KILLED)
    env = {"SCANS_KILLED": str(times)}
    run = run_fast(tmp_path, command, *AUTO, wtrain=wtrain, env=env).check(code)
    assert_ended_in_order(run)
    said = [sentence(one["why"]) for one in run.of_type("noticed") if one["kind"] == "scan"]
    assert all("killed by signal 9" in why for why in said)
    assert said[0] in run.stderr
    if code:
        assert len(run.of_type("attempt_launching")) == 1, run.describe()
        assert "wtrain restart" in run.stderr
        return
    assert len(said) == 2
    chosen = run.only("checkpoint_chosen")
    assert (Path(chosen["path"]).name, chosen["how_checked"]) == ("step-000010.pt", "recorded")
    assert "step-000010.pt at step 10" in run.stdout
    assert last_line(run.stdout).startswith("finished step=20 ")


DOES_NOT_LOAD = """
import argparse, os, zipfile
import watchdog_train

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--out_dir", default="out")
args = parser.parse_args()
os.makedirs(args.out_dir, exist_ok=True)
first = not os.listdir(args.out_dir)
step = 0
if args.resume:
    with zipfile.ZipFile(args.resume) as archive:
        step = int(archive.read("c/data.pkl"))
while step < 40:
    step += 1
    watchdog_train.beat(step)
    if step % 10 == 0:
        with zipfile.ZipFile(f"{args.out_dir}/step-{step}.pt", "w") as archive:
            archive.writestr("c/version", "3")
            archive.writestr("c/data.pkl", "" if first and step == 30 else str(step))
    if first and step == 35:
        raise RuntimeError("planted failure")
print("finished", step)
"""


def test_an_older_checkpoint_is_used_where_the_newest_does_not_load(tmp_path: Path) -> None:
    """Its form is valid; after two attempts that failed with it the older one has its turn."""
    command = (*script(tmp_path, DOES_NOT_LOAD), "--out_dir", "out")
    run = run_fast(tmp_path, command, *RESUME).check(0)
    assert_log_is_sound(run)
    used = [Path(one["path"]).name for one in run.of_type("checkpoint_chosen")]
    assert used == ["step-30.pt", "step-30.pt", "step-20.pt"]
    passed = run.only("checkpoint_rejected")
    assert (Path(passed["path"]).name, passed["torn"]) == ("step-30.pt", False)
    assert "attempts 2 and 3 resumed from it and failed: exit code 1 before" in sentence(
        passed["why"]
    )
    assert f"out/step-30.pt: {sentence(passed['why'])}" in run.stderr
    assert "passing over step-30.pt" in run.stderr
    assert last_line(run.stdout) == "finished 40"
    report = run_wtrain("report", cwd=tmp_path).check(0)
    assert sentence(passed["why"]) in report.stdout + (run.run_dir / "report.html").read_text(
        "utf-8"
    )


@pytest.mark.timeout(170)
def test_the_same_exception_again(tmp_path: Path) -> None:
    """At the same line without a newer checkpoint: two attempts, then the child's own code.

    Every screen has the exception, its line and no other cause, in its first line.
    """
    run = run_program(tmp_path, "crash_at_step.py", "exception", "--always").check(1)
    assert_log_is_sound(run)
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    assert run.only("run_finished")["outcome"] == "failed"
    for bundle in run.of_type("evidence_collected"):
        raised = bundle["crash"]["exception"]
        assert (raised["type"], raised["source"]) == ("RuntimeError", "hook")
        assert raised["own"]["function"] == "crash"
    step = run.of_type("evidence_collected")[0]["crash"]["step"]
    words = f"rank 0 raised RuntimeError at crash_at_step.py:14, step {step}: planted failure"
    assert f"wtrain: CRASH 0001: {words}" in run.stderr
    assert words in sentence(run.only("given_up")["why"])
    assert "the same failure 2 times without a newer checkpoint" in sentence(
        run.only("given_up")["why"]
    )
    assert "cause: not known" not in run.stderr
    assert words in next(run.run_dir.glob("stalls/0002/SUMMARY.md")).read_text("utf-8")
    assert words in (run.run_dir / "report.html").read_text("utf-8")
    for command_line in (("show",), ("stalls",)):
        shown = run_wtrain(*command_line, cwd=tmp_path).check(0)
        assert words in " ".join(shown.stdout.splitlines()[:2]), shown.describe()
    row = json.loads(run_wtrain("stalls", "--json", cwd=tmp_path).check(0).stdout)["stalls"][0]
    assert row["crash"]["exception"]["message"] == "planted failure"
    assert row["what"].startswith(words)


BUGS = {
    "module": ("import watchdog_train\nimport nosuch\n", 1, "No module named 'nosuch'"),
    "syntax": ("def train(:\n    pass\n", 1, "SyntaxError at train.py:1: invalid syntax"),
    "option": (
        "import argparse\nargparse.ArgumentParser().parse_args(['--epoch'])\n",
        2,
        "unrecognized arguments: --epoch",
    ),
}


@pytest.mark.parametrize(("text", "code", "words"), BUGS.values(), ids=BUGS)
def test_a_bug_of_the_script(text: str, code: int, words: str, tmp_path: Path) -> None:
    """Before the first step: one attempt, the child's code, the end of the traceback."""
    run = run_wtrain("run", "--", *script(tmp_path, text), cwd=tmp_path).check(code)
    assert len(run.of_type("attempt_launched")) == 1
    finished = run.only("run_finished")
    assert finished["outcome"] == "failed"
    assert words in sentence(finished["why"]), finished
    if code == 1:
        assert 'wtrain:   File "' in run.stderr, run.describe()


LOST_ONCE = """
import os, time
import watchdog_train as wt
for step in range(1, 5):
    wt.beat(step)
    time.sleep(0.05)
    if step == 3 and not os.path.exists("lost"):
        open("lost", "w").close()
        raise ConnectionResetError(104, "Connection reset by peer")
"""


def test_a_lost_connection_is_tried_again_at_once(tmp_path: Path) -> None:
    run = run_wtrain("run", "--", *script(tmp_path, LOST_ONCE), cwd=tmp_path).check(0)
    assert run.only("evidence_collected")["crash"]["exception"]["type"] == "ConnectionResetError"
    assert not run.of_type("backing_off")


@pytest.mark.parametrize(
    ("how", "code"), [("exit", 9), pytest.param("kill", 137, marks=pytest.mark.slow)]
)
def test_no_restart_passes_the_code_through(how: str, code: int, tmp_path: Path) -> None:
    """With --on-crash stop the child's own code (128+N for a signal) is ours."""
    command = program_command("crash_at_step.py", how, "--at", "2")
    run = run_wtrain("run", "--on-crash", "stop", "--", *command, cwd=tmp_path).check(code)
    assert run.only("run_finished")["outcome"] == "failed"
    assert len(run.of_type("attempt_launched")) == 1


@pytest.mark.slow
def test_success_without_one_step_warns(tmp_path: Path) -> None:
    """Code 0 without a step is success, with a warning that says so."""
    run = run_wtrain("run", "--", sys.executable, "-c", "import torch", cwd=tmp_path).check(0)
    finished = run.only("run_finished")
    assert finished["outcome"] == "succeeded"
    assert "step" in sentence(finished["warning"])
    assert not kills(run.events)


def test_success_below_the_known_total_warns(tmp_path: Path) -> None:
    """Code 0 after 7 of 40 known steps is success, with a warning that names the numbers."""
    code = "import watchdog_train as wt\nfor step in range(1, 8): wt.beat(step, 40)\n"
    code += "import time; time.sleep(3)\n"
    run = run_wtrain("run", "--", sys.executable, "-c", code, cwd=tmp_path).check(0)
    finished = run.only("run_finished")
    assert finished["outcome"] == "succeeded"
    assert "40" in sentence(finished["warning"]), run.describe()


def test_command_that_is_no_training(tmp_path: Path) -> None:
    """A command that has nothing to do with Python passes its own code through."""
    run_wtrain("run", "--on-crash", "stop", "--", "sh", "-c", "exit 3", cwd=tmp_path).check(3)


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_a_file_that_was_torn_in_place_goes_on_from_its_copy(tmp_path: Path) -> None:
    """Killed in the middle of overwriting its only checkpoint, it goes on from the kept copy."""
    run = run_fast(tmp_path, program_command("overwrites_in_place.py"), *AUTO).check(0)
    assert_log_is_sound(run)
    kept = run.of_type("checkpoint_kept")[0]
    assert (kept["step"], Path(kept["path"]).name) == (10, "last.pt"), run.describe()
    chosen = run.only("checkpoint_chosen")
    restored = run.only("checkpoint_restored")
    assert (restored["copy"], chosen["path"]) == (kept["copy"], kept["path"])
    assert chosen["step"] == 10
    assert "at step 10" in run.stdout, run.describe()
    assert last_line(run.stdout).startswith("finished step=20 ")
    assert not (run.run_dir / "kept").exists(), "after a success nobody needs it"


@pytest.mark.timeout(120)
def test_a_restart_that_did_not_resume_saves_over_nothing(tmp_path: Path) -> None:
    """It is stopped before its first save; its checkpoint is there still, and a copy of it."""
    run = run_program(tmp_path, "overwrites_in_place.py", "--begins-again").check(76)
    assert_ended_in_order(run)
    last = tmp_path / "checkpoints" / "last.pt"
    kept = run.of_type("checkpoint_kept")[-1]
    assert counters(str(last)) == counters(kept["copy"]) == {"step": 10}, run.describe()
    told = run.of_type("resume_verified")[-1]
    assert told["contradicted"], run.describe()
    why = sentence(run.only("given_up")["why"])
    assert f"wtrain run --resume-arg '--resume {{checkpoint}}' -- {sys.executable}" in why
    assert why.count(f"--resume {last}") == 1
    assert kept["copy"] in why
    assert len(run.of_type("evidence_collected")) == 1, "of the crash, not of what was stopped"


@pytest.mark.timeout(120)
def test_a_torn_file_is_replaced_by_its_copy_where_the_script_opens_it(tmp_path: Path) -> None:
    """The script knows one path only: the copy is put there, and the torn file beside it."""
    run = run_program(tmp_path, "overwrites_in_place.py", "--own").check(0)
    assert_log_is_sound(run)
    restored = run.only("checkpoint_restored")
    assert Path(restored["aside"]).stat().st_size == 1000
    assert run.only("checkpoint_chosen")["path"] == restored["path"], run.describe()
    assert len(run.of_type("attempt_launched")) == 2
    assert "at step 10" in run.stdout
    assert last_line(run.stdout).startswith("finished step=20 ")


STAYS = """
import atexit, threading
from zoo import Training
training = Training()
training.train(10)
never = threading.Event()
"""
WAYS_TO_STAY = {
    "exit handler": "atexit.register(never.wait)\nraise ValueError('bad sample')\n",
    "finally": "try:\n    raise ValueError('bad sample')\nfinally:\n    never.wait()\n",
    "handled": "try:\n    raise ValueError('bad sample')\nexcept ValueError:\n    never.wait()\n",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        name if name == "finally" else pytest.param(name, marks=pytest.mark.slow)
        for name in WAYS_TO_STAY
    ],
)
def test_a_training_that_raised_and_did_not_leave(name: str, tmp_path: Path) -> None:
    """Its exception is the cause, by the rules for crashes; one that it handles is none."""
    train = script(tmp_path, STAYS + WAYS_TO_STAY[name])
    options = ("--on-crash", "stop", "--max-restarts", "0")
    run = run_fast(tmp_path, train, *options, env=ZOO, timeout_s=50)
    stays = name != "handled"
    run.check(76 if stays else 75)
    assert run.only("stall_declared"), run.describe()
    assert ("rank 0, which did not exit, raised ValueError at train.py:" in run.stderr) is stays
    assert ("on-crash is stop" in run.stderr) is stays, run.describe()


HANDLED = """
import logging, os
from zoo import Training
training = Training()
training.train(10)
try:
    {}["missing"]
except KeyError:
    logging.exception("skipped a sample")
training.train(100)
os._exit(7)
"""


@pytest.mark.timeout(60)
def test_an_exception_that_was_handled_is_not_the_end(tmp_path: Path) -> None:
    """It is in the output, and steps came after it: nothing but the exit code is known."""
    train = ("--on-crash", "stop", "--", *script(tmp_path, HANDLED))
    run = run_wtrain("run", *train, cwd=tmp_path, env=ZOO, timeout_s=50).check(7)
    assert "CRASH 0001: rank 0 exited with code 7 at step 100\n" in run.stderr, run.describe()


HELPERS = """
import multiprocessing, os, signal
from zoo import Training

def work(connection):
    while True:
        connection.send(connection.recv() + 1)

if __name__ == "__main__":
    training = Training()
    pairs = [multiprocessing.Pipe() for _ in range(3)]
    workers = [multiprocessing.Process(target=work, args=(end,), daemon=True) for _, end in pairs]
    for worker in workers:
        worker.start()
    while True:
        training.train(training.step + 1)
        if training.step == 40:
            os.kill(workers[1].pid, signal.SIGKILL)
        for ours, _ in pairs:
            ours.send(training.step)
        for ours, _ in pairs:
            ours.recv()
"""


@pytest.mark.timeout(60)
def test_a_killed_helper_is_named_where_the_others_wait(tmp_path: Path) -> None:
    """The other helpers hold the pipe open, too: they are not the cause."""
    train = script(tmp_path, HELPERS)
    run = run_fast(tmp_path, train, "--max-restarts", "0", env=ZOO, timeout_s=50).check(75)
    assert re.search(r"python\S* \(pid \d+\) was killed by SIGKILL", run.stderr), run.describe()
    assert "wait for each other" not in run.stderr


DISK = """
import sys
from zoo import Training
training = Training()
training.train(10)
training.torch.save({"big": training.torch.zeros(8 << 20)}, sys.argv[1])
"""


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_save_on_a_full_disk_names_it(tmp_path: Path) -> None:
    """torch.save speaks of positions in its own format."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        train = ("--on-crash", "stop", "--", *script(tmp_path, DISK), str(disk / "a.pt"))
        run = run_wtrain("run", *train, cwd=tmp_path, env=ZOO, timeout_s=50).check(1)
    assert f"the disk is full at {disk}/a.pt, 0 B free; rank 0 raised RuntimeError" in run.stderr
