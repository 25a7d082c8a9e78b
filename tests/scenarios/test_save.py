"""Asking a Trainer to save, and to save and stop: asked is not saved, and the proof is an event."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order
from tests.support import (
    EXAMPLES,
    CompletedRun,
    RunningWtrain,
    program_command,
    run_wtrain,
    start_fast,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]


def start_trainer(cwd: Path, steps: int) -> RunningWtrain:
    """A Hugging Face training that saves by itself only at its end, at its first step."""
    script = cwd / "train.py"
    text = (EXAMPLES / "hf_trainer.py").read_text()
    text = text.replace("save_steps=10,", "save_steps=100000,")
    # What many scripts end with: a model, which is newer than the checkpoint and none itself.
    ends = "result = trainer.train()"
    script.write_text(text.replace(ends, f"{ends}\n    trainer.save_model()"))
    (cwd / "text.txt").write_text((EXAMPLES / "text.txt").read_text())
    running = start_fast(cwd, program_command(str(script), "--max_steps", str(steps)))
    running.wait_for("first_step", 120)
    return running


def checkpoints(cwd: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in cwd.glob("hf-output/checkpoint-*"))


def assert_proven(run: CompletedRun, request: str, sequence: int, asked: dict[str, object]) -> int:
    """The event of a whole checkpoint that is newer than the request; its step."""
    (proven,) = [
        event
        for event in run.of_type("save_proven")
        if (event["request"], event["sequence"]) == (request, sequence)
    ]
    path = Path(proven["path"])
    assert path.name == f"checkpoint-{proven['step']}", run.describe()
    assert (path / "trainer_state.json").stat().st_mtime >= float(str(asked["t"]))
    assert proven["seq"] > int(str(asked["seq"]))
    return int(proven["step"])


def test_a_trainer_saves_when_asked_and_before_it_stops(tmp_path: Path) -> None:
    """Two requests to save, with proof; a stop saves once more, ends well, and signals nobody."""
    running = start_trainer(tmp_path, 100_000)
    saved = run_wtrain("save", "--wait", cwd=tmp_path).check(0)
    assert "saved a valid checkpoint: hf-output/checkpoint-" in saved.stderr, saved.describe()
    assert len(checkpoints(tmp_path)) == 1
    run_wtrain("save", cwd=tmp_path).check(0)
    run_wtrain("save", "--wait", cwd=tmp_path).check(0)
    stopped = run_wtrain("stop", cwd=tmp_path).check(0)
    run = running.result(90).check(77)
    assert_ended_in_order(run)
    assert not run.of_type("signalled"), run.describe()
    requested = run.of_type("save_requested")
    assert [event["sequence"] for event in requested] == [1, 2, 3]
    assert_proven(run, "save", 1, requested[0])
    assert_proven(run, "save", 3, requested[2])
    last = assert_proven(run, "stop", 1, run.only("stop_asked"))
    assert last == max(checkpoints(tmp_path))
    assert run.only("attempt_exited")["code"] == 0
    assert run.only("run_finished")["warning"] is None
    assert ", valid" in stopped.stderr
    assert (
        "has ended already" in run_wtrain("save", run.run_dir.name, cwd=tmp_path).check(78).stderr
    )


def test_a_save_asked_for_in_the_last_moment(tmp_path: Path) -> None:
    """The training may end before it hears of it: the answer is a word and a code, not a wait."""
    running = start_trainer(tmp_path, 60)
    answer = run_wtrain("save", "--wait", cwd=tmp_path, timeout_s=60)
    assert answer.returncode in (0, 78), answer.describe()
    running.result(90).check(0)
