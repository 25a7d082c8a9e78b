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
from watchdog_train.core.recovery.plans import choose_checkpoint
from watchdog_train.report.why_text import why_text
from watchdog_train.store import claims
from watchdog_train.store.claims import claims_directory, is_free
from watchdog_train.supervisor.directories import OutputDirectories
from watchdog_train.trusted_files import open_regular

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("watchdog_train.store.claims.shared_bases", lambda: (tmp_path,))
    yield
    assert claims_directory(make=False) is None, "a lock, or its folder, was left"


def conflicts(run: OutputDirectories, *names: str, job: str | None = None) -> list[str]:
    return [f"{each.run_id} {each.directory}" for each in run.claim(names, job=job)]


@contextmanager
def another_supervisor(base: Path, run_id: str) -> Iterator[Callable[[], None]]:
    """One that has claimed /w/out; how to kill it."""
    program = (
        "import sys, pathlib\n"
        "from watchdog_train.store import claims\n"
        "claims.shared_bases = lambda: (pathlib.Path(sys.argv[1]),)\n"
        "from watchdog_train.supervisor.directories import OutputDirectories\n"
        "run = OutputDirectories(sys.argv[2], '/w')\n"
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
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield kill
        finally:
            kill()


def test_the_second_run_hears_of_the_first_once() -> None:
    """Relative to where each was started; the first hears nothing, and loses nothing."""
    first, second = OutputDirectories("one", "/w"), OutputDirectories("two", "/w/sub")
    assert conflicts(first, "out") == []
    assert conflicts(first, "out", "/w/out/") == []
    assert conflicts(second, "../out") == ["one /w/out"]
    assert conflicts(second, "../out", "own") == []
    third = OutputDirectories("three", os.fsdecode(b"/w/\xff"))  # need not be UTF-8
    first.release()
    assert conflicts(third, "/w/out", "elsewhere") == []
    third.release()
    second.release()


def test_a_lock_that_is_removed_while_it_is_opened_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever had it before removes it between our open() and our lock: others see a new file."""

    first, second = OutputDirectories("one", "/w"), OutputDirectories("two", "/w")
    with monkeypatch.context() as patch:

        def opened_too_early(path: Path, flags: int) -> int:
            fd = open_regular(path, flags)
            patch.undo()
            path.unlink()
            return fd

        patch.setattr(claims, "open_regular", opened_too_early)
        assert conflicts(first, "out") == []
    assert conflicts(second, "out") == ["one /w/out"]
    first.release()
    second.release()


def test_tasks_of_a_job_share_their_directory() -> None:
    """Every rank of it saves there; another job is another matter."""
    tasks = [OutputDirectories(f"task{number}", "/w") for number in range(3)]
    assert conflicts(tasks[0], "out", job="slurm:7.0") == []
    assert conflicts(tasks[1], "out", job="slurm:7.0") == []
    assert conflicts(tasks[2], "out", job="slurm:8.0") == ["task0 /w/out"]
    for task in tasks:
        task.release()


def test_a_killed_supervisor_holds_nothing(tmp_path: Path) -> None:
    """The kernel releases its lock; the file it has left is taken over."""
    run = OutputDirectories("alive", "/w")
    with another_supervisor(tmp_path, "dead") as kill:
        folder = claims_directory(make=False)
        assert folder is not None
        (lock,) = folder.iterdir()
        assert not is_free(lock)
        assert conflicts(OutputDirectories("late", "/w"), "out") == ["dead /w/out"]
        kill()
    assert is_free(lock)
    assert conflicts(run, "out") == []
    run.release()


def test_what_a_killed_supervisor_left_ends_with_its_run(tmp_path: Path) -> None:
    """Its successor may never hear of the directory: the training can have ended meanwhile."""
    with another_supervisor(tmp_path, "dead") as kill:
        OutputDirectories("dead", "/w").release()
        (lock,) = claims_directory(make=False).iterdir()  # type: ignore[union-attr]
        assert not is_free(lock), "what a living one holds is not taken away"
        kill()
    OutputDirectories("other", "/w").release()
    assert is_free(lock), "it is not the other run's"
    OutputDirectories("dead", "/w").release()


def test_nothing_of_a_shared_directory_is_resumed_from() -> None:
    """Which steps are whose cannot be told; a checkpoint elsewhere is as good as ever."""
    shared = e.CheckpointsShared(
        directory="/w/out", run_id="one", pid=7, why=said("both write there")
    )
    state = b.running(shared)

    def finding(path: str, step: int) -> CheckpointFinding:
        return CheckpointFinding(
            path=path, format="hf", step=step, whole=True, said="", how_checked="recorded"
        )

    findings = (finding("/w/out/checkpoint-9", 9), finding("/w/outer/checkpoint-5", 5))
    choice = choose_checkpoint(state, Survey(findings=findings, directories=("/w/out",)))
    assert choice.chosen is not None
    assert choice.chosen.step == 5
    assert "the run one writes there" in why_text(choice.rejected[0].why)
