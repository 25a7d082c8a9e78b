"""Two runs that write their checkpoints to one directory: seen, said, and no resume from there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.model import CheckpointFinding, Survey, said
from watchdog_train.core.recovery.choice import choose_checkpoint
from watchdog_train.report.why_text import why_text
from watchdog_train.store.registry import claims_directory
from watchdog_train.supervisor import saved_checkpoints
from watchdog_train.system import current


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("watchdog_train.store.registry.shared_bases", lambda: (tmp_path,))
    yield
    assert not list(tmp_path.iterdir()), "a claim, or its folder, was left"


def supervisor(run_id: str, cwd: str = "/w") -> saved_checkpoints.OutputDirectories:
    return saved_checkpoints.OutputDirectories(run_id, cwd, current())


def conflicts(
    run: saved_checkpoints.OutputDirectories, *names: str, job: str | None = None
) -> list[str]:
    return [f"{each.run_id} {each.directory}" for each in run.claim(names, job=job)]


@contextmanager
def another_supervisor(base: Path, run_id: str) -> Iterator[Callable[[], None]]:
    """One that has claimed /w/out; how to kill it."""
    program = (
        "import sys, pathlib\n"
        "from watchdog_train.store import registry\n"
        "from watchdog_train.system import current\n"
        "registry.shared_bases = lambda: (pathlib.Path(sys.argv[1]),)\n"
        "from watchdog_train.supervisor.saved_checkpoints import OutputDirectories\n"
        "run = OutputDirectories(sys.argv[2], '/w', current())\n"
        "assert not list(run.claim(['out'], job=None))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", program, str(base), run_id]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def kill() -> None:
            process.kill()
            process.wait(10)

        try:
            assert process.stdout.readline() == b"held\n"
            yield kill
        finally:
            kill()


def test_the_second_run_hears_of_the_first_once() -> None:
    """Relative to where each was started; the first hears nothing, and loses nothing."""
    first, second = supervisor("one"), supervisor("two", "/w/sub")
    assert conflicts(first, "out") == []
    assert conflicts(first, "out", "/w/out/") == []
    assert conflicts(second, "../out") == ["one /w/out"]
    assert conflicts(second, "../out", "own") == []
    second.release()
    third = supervisor("three", os.fsdecode(b"/w/\xff"))  # need not be UTF-8
    first.release()
    assert conflicts(third, "/w/out", "elsewhere") == []
    third.release()


def test_tasks_of_a_job_share_their_directory() -> None:
    """Every rank of it saves there; another job is another matter."""
    tasks = [supervisor(f"task{number}") for number in range(3)]
    assert conflicts(tasks[0], "out", job="slurm:7.0") == []
    assert conflicts(tasks[1], "out", job="slurm:7.0") == []
    assert conflicts(tasks[2], "out", job="slurm:8.0") == ["task0 /w/out", "task1 /w/out"]
    for task in tasks:
        task.release()


def test_a_killed_supervisor_holds_nothing(tmp_path: Path) -> None:
    """What it has left says nothing any more, and ends with its run's next supervisor."""
    with another_supervisor(tmp_path, "dead") as kill:
        late = supervisor("late")
        assert conflicts(late, "out") == ["dead /w/out"]
        late.release()
        kill()
    run = supervisor("alive")
    assert conflicts(run, "out") == []
    run.release()
    assert claims_directory("dead", make=False) is not None
    supervisor("dead").release()


def test_of_a_shared_directory_only_what_the_own_hooks_noted_is_resumed_from() -> None:
    """Whose the others are is unknown; a checkpoint elsewhere is as good as ever."""
    shared = e.CheckpointsShared(
        directory="/w/out", run_id="one", pid=7, why=said("both write there")
    )
    state = b.running(shared)

    def finding(path: str, step: int, how: str = "every tensor") -> CheckpointFinding:
        return CheckpointFinding(
            path=path, format="hf", step=step, whole=True, said="", how_checked=how
        )

    findings = (finding("/w/out/checkpoint-9", 9), finding("/w/outer/checkpoint-5", 5))
    choice = choose_checkpoint(state, Survey(findings=findings, directories=("/w/out",)))
    assert choice.chosen.step == 5
    assert "the run one writes there" in why_text(choice.rejected[0].why)
    noted = (finding("/w/out/checkpoint-7", 7, "recorded"), *findings[1:])
    choice = choose_checkpoint(state, Survey(findings=noted, directories=("/w/out",)))
    assert choice.chosen.step == 7
