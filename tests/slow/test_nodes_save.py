"""Two nodes of two ranks that save together: a Hugging Face Trainer that is asked on one node."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import (
    assert_nothing_lives,
    described,
    ended,
    logs,
    start_nodes,
    wait_for_step,
)
from tests.support import (
    EXAMPLES,
    Event,
    RunningWtrain,
    free_port,
    of_type,
    run_directories,
    run_wtrain,
    sentence,
    wait_until,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(900),
]


def start_trainer(
    cwd: Path, *, meet: str = "meet", ask_s: int = 120, **more: Any
) -> list[RunningWtrain]:
    """A long training that saves nothing by itself."""
    script = cwd / "train.py"
    text = (EXAMPLES / "hf_trainer.py").read_text()
    text = text.replace("save_steps=10,", "save_steps=100000,")
    script.write_text(text.replace("dataloader_num_workers=2", "dataloader_num_workers=0"))
    (cwd / "text.txt").write_text((EXAMPLES / "text.txt").read_text())
    program = ("--max_steps", "90000")
    return start_nodes(cwd, *program, script=script, meet=meet, ask_s=ask_s, **more)


def name_of(cwd: Path, node: int) -> str:
    return next(path.name for path in run_directories(cwd) if f"-node{node}-" in path.name)


def proofs(events: list[Event], request: str) -> list[Event]:
    return [one for one in of_type(events, "save_proven") if one["request"] == request]


def signals(events: list[Event]) -> list[Event]:
    return [one for one in of_type(events, "signalling") if one["targets"] and one["signal"]]


@pytest.mark.parametrize("meet", ["directory", "store"])
def test_both_nodes_save_and_stop_when_one_is_asked(tmp_path: Path, meet: str) -> None:
    """The same request on both, one step of all four ranks, a whole checkpoint; then the stop."""
    at = "meet" if meet == "directory" else f"tcp://127.0.0.1:{free_port()}"
    job = start_trainer(tmp_path, meet=at)
    wait_for_step(tmp_path, 3)
    saved = run_wtrain("save", "--wait", name_of(tmp_path, 1), cwd=tmp_path, timeout_s=200)
    assert saved.returncode == 0, saved.describe() + described(tmp_path)
    assert "saved and checked whole" in saved.stderr

    def proven_on_both() -> bool:
        return all(proofs(log, "save") for log in logs(tmp_path).values())

    wait_until(proven_on_both, 30, "both nodes know of the checkpoint")
    paths = []
    for events in logs(tmp_path).values():
        (asked,) = of_type(events, "save_requested")
        (proven,) = proofs(events, "save")
        assert (asked["sequence"], asked["can_be_asked"]) == (1, True)
        assert proven["sequence"] == 1
        paths.append((proven["path"], proven["step"]))
        for rank in range(4):
            assert (Path(proven["path"]) / f"rng_state_{rank}.pth").exists()
    assert len(set(paths)) == 1
    wait_for_step(tmp_path, paths[0][1] + 3)

    stopped = run_wtrain("stop", name_of(tmp_path, 1), cwd=tmp_path, timeout_s=200)
    assert stopped.returncode == 0, stopped.describe()
    found, text = ended(job, 77, 77)
    last = []
    for events in found.values():
        assert not signals(events), text
        (answered,) = [
            one for one in of_type(events, "request_answered") if one["request"] == "stop"
        ]
        (proven,) = proofs(events, "stop")
        assert answered["step"] <= proven["step"], text
        last.append((proven["path"], proven["step"]))
        (exited,) = of_type(events, "attempt_exited")
        assert exited["code"] == 0, text
    assert len(set(last)) == 1, text
    assert last[0][1] > paths[0][1], text
    assert_nothing_lives(found, text)


def test_a_node_that_does_not_answer_leads_to_the_signal(tmp_path: Path) -> None:
    """Its supervisor stands still: the ranks never agree, go on training, and get the signal."""
    job = start_trainer(tmp_path, ask_s=10)
    wait_for_step(tmp_path, 3)
    os.kill(job[1].process.pid, signal.SIGSTOP)
    try:
        stopped = run_wtrain("stop", name_of(tmp_path, 0), cwd=tmp_path, timeout_s=400)
    finally:
        os.kill(job[1].process.pid, signal.SIGCONT)
    text = described(tmp_path)
    assert stopped.returncode == 0, stopped.describe() + text
    events = logs(tmp_path)[0]
    assert of_type(events, "stop_asked"), text
    assert not of_type(events, "request_answered"), text
    first = signals(events)[0]
    assert first["stage"] == "root", text
    assert "it has not ended within" in sentence(first["why"]), text
    assert job[0].result(60).returncode == 77, text
    job[1].result(200)
    assert_nothing_lives(logs(tmp_path), text)
