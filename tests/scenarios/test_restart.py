"""`wtrain restart`: an ended run goes on in its own directory, from its newest valid checkpoint."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, last_line
from tests.support import (
    Event,
    of_type,
    program_command,
    read_log,
    run_fast,
    run_wtrain,
    scenario_environment,
    start_fast,
    wait_until,
    write_fast_config,
)

pytestmark = pytest.mark.timeout(150)

RESUME = ("--resume-arg", "--resume {checkpoint}")


@pytest.mark.slow
def test_a_failed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """The crash is forgiven, the setting that was added is in effect, and the run succeeds."""
    command = program_command("crash_at_step.py", "exit")
    failed = run_fast(tmp_path, command, "--on-crash", "stop", *RESUME).check(9)
    assert "wtrain restart" in failed.stderr, failed.describe()
    run_id = failed.run_dir.name
    run_wtrain("restart", run_id, "--with", "omp-one", cwd=tmp_path).check(78)

    run = run_wtrain("restart", run_id, "--with", "omp-1", cwd=tmp_path).check(0)
    assert run.run_dir.name == run_id
    assert_ended_in_order(run)
    assert [event["exit_code"] for event in run.of_type("run_finished")] == [9, 0]
    assert run.only("reopened")["with_remedies"] == ["omp-1"]
    assert Path(run.only("checkpoint_chosen")["path"]).name == "step-000010.pt"
    plan = run.of_type("plan_made")[-1]["plan"]
    assert [remedy["id"] for remedy in plan["remedies"]] == ["omp-1"]
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert run.of_type("first_beat"), "heartbeats reach the reopened run"
    assert last_line(run.stdout).startswith("finished step=20 ")

    again = run_wtrain("restart", run_id, cwd=tmp_path).check(78)
    assert "has succeeded" in again.stderr


@pytest.mark.slow
def test_a_live_run_is_stopped_first(tmp_path: Path) -> None:
    """A run under way is stopped in order, and goes on from its checkpoint."""
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "120")
    running = start_fast(tmp_path, command, *RESUME)
    running.wait_for("progress", 60, lambda event: (event["progress"]["step"] or 0) > 10)
    run = run_wtrain("restart", running.run_dir.name, cwd=tmp_path).check(0)
    running.result(30).check(77)
    assert_ended_in_order(run)
    assert [event["outcome"] for event in run.of_type("run_finished")] == ["stopped", "succeeded"]
    assert run.only("checkpoint_chosen")["step"] >= 10
    assert last_line(run.stdout).startswith("finished step=120 ")


FLAG = """
import argparse, os, signal, torch
parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
model, step = torch.nn.Linear(4, 1), 0
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["LR"]))
if args.resume:
    step = torch.load("ckpt.pt")["step"]
told = [os.environ.get(name) for name in ("LR", "A_TOKEN", "DEVICE")]
print("step", step, *told, os.path.basename(os.getcwd()), flush=True)
while True:
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        torch.save({"step": step, "model": model.state_dict()}, "ckpt.pt")
    if step == 12:
        signal.pause() if args.resume else exit(9)
"""


def test_what_a_run_had_is_kept_and_a_stop_is_the_end(tmp_path: Path) -> None:
    """From another shell, in another place, in the background: option, directory, environment."""
    config, script = write_fast_config(tmp_path), tmp_path / "flag.py"
    script.write_text(FLAG)
    command = ("--", sys.executable, str(script))
    options = ("--config", str(config), "--on-crash", "stop", "--resume-arg=--resume")
    began = {"LR": "0.5", "A_TOKEN": "hush-hush", "DEVICE": "7"}
    failed = run_wtrain("run", *options, *command, cwd=tmp_path, env=began).check(9)
    run_dir = failed.run_dir
    kept = run_dir / "environment.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "hush" not in kept.read_text()
    latest = run_dir.parent / "latest"
    run_wtrain("run", "--", "true", cwd=tmp_path).check(0)
    assert latest.resolve() != run_dir

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shell = {**scenario_environment(tmp_path), "DEVICE": "3", "LR": "0.1"}
    words = ("restart", str(run_dir), "--env", "DEVICE", "-d")
    done = run_wtrain(*words, cwd=elsewhere, env=shell).check(0)
    assert done.stdout.splitlines()[0] == run_dir.name, done.describe()
    assert "this shell differs in LR (" in done.stderr, done.describe()
    assert "not set here, and kept nowhere: A_TOKEN" in done.stderr, done.describe()
    assert latest.resolve() == run_dir

    def stepped() -> list[Event]:
        return of_type(read_log(run_dir), "first_step")[1:]

    wait_until(stepped, 40, "it has resumed")
    output = (run_dir / "attempts" / "0002" / "output.log").read_text()
    assert output.startswith(f"step 10 0.5 None 3 {tmp_path.name}\n"), output
    plan = of_type(read_log(run_dir), "plan_made")[-1]["plan"]
    assert (plan["argv"][-1], plan["resume_via"]) == ("--resume", "script")

    run_wtrain("stop", run_dir.name, cwd=elsewhere, env=shell).check(0)
    events = read_log(run_dir)
    assert events[-1]["type"] == "run_finished"
    assert len(of_type(events, "attempt_launching")) == 2
    assert "no live run" in run_wtrain("ps", cwd=elsewhere, env=shell).stdout
