"""Copies of a training that no run has recorded: listed with who started them, ended when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.support import wait_until
from watchdog_train.client import layout
from watchdog_train.supervisor.duplicates import training_key
from watchdog_train.supervisor.last_look import dump_lookalikes
from watchdog_train.supervisor.lookalikes import (
    LookAlike,
    end_lookalikes,
    find_lookalikes,
    found_event,
)
from watchdog_train.system import current

pytestmark = pytest.mark.processes

SCRIPT = """\
import subprocess, sys, time
if "--deaf" in sys.argv:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--child" in sys.argv:
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""


class Copies:
    """Started by hand, as after a bad night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> int:
        process = subprocess.Popen(
            [sys.executable, str(self.folder / "train.py"), *arguments],
            cwd=cwd or self.folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process.pid

    def found(self, *arguments: str, supervised: tuple[str, ...] = ()) -> tuple[LookAlike, ...]:
        command = ("python", str(self.folder / "train.py"), *arguments)
        key = training_key(command, str(self.folder), os.environ)
        return find_lookalikes(current(), command, str(self.folder), key, supervised=supervised)

    def ended(self, pid: int) -> bool:
        process = next(each for each in self.started if each.pid == pid)
        return process.poll() is not None

    def close(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):  # with what it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    made = Copies(tmp_path)
    yield made
    made.close()


def test_the_same_training_is_listed_and_nothing_else_is(copies: Copies, tmp_path: Path) -> None:
    """Not a twin on another GPU, a sweep, an array, another place, nor a supervised run's own."""
    copy, second = copies.start("--lr", "1"), copies.start("--lr", "1")
    (tmp_path / "elsewhere").mkdir()
    copies.start("--lr", "2")
    copies.start("--lr", "1", env={"CUDA_VISIBLE_DEVICES": "1"})
    copies.start("--lr", "1", env={"SLURM_ARRAY_TASK_ID": "3"})
    copies.start("--lr", "1", cwd=tmp_path / "elsewhere")
    orphan = copies.start("--lr", "1", env={layout.ENV_RUN_ID: "old", layout.ENV_TOKEN: "x"})
    copies.start("--lr", "1", env={layout.ENV_RUN_ID: "live", layout.ENV_TOKEN: "y"})
    found = copies.found("--lr", "1", supervised=("live",))
    assert [one.process.pid for one in found] == [copy, second, orphan]
    assert [one.run_id for one in found] == [None, None, "old"]
    first = found[0]
    assert first.same_user
    assert " old" in first.why
    assert f"(pid {os.getpid()})" in first.why
    assert "not under wtrain" in first.why
    assert "user " in first.why
    assert "train.py --lr 1" in first.command
    assert [each.pid for each in found_event(found).orphans] == [copy, second, orphan]


def test_copies_are_ended_with_all_they_have_started(copies: Copies) -> None:
    """SIGTERM first, SIGKILL for what does not hear it; a bystander lives on."""
    deaf = copies.start("--deaf", "--child")
    bystander = copies.start("--child")
    found = copies.found("--deaf", "--child")
    assert [one.process.pid for one in found] == [deaf]
    killed = list(end_lookalikes(current(), found, grace_s=0.3))
    wait_until(lambda: copies.ended(deaf), 10, "the copy has ended")
    assert [(one.pid, one.signal) for one in killed[:2]] == [(deaf, 15), (deaf, 9)]
    assert len({one.pid for one in killed}) == 2, "its child, too"
    assert not copies.ended(bystander)
    assert not copies.found("--deaf", "--child")


def test_what_cannot_be_dumped_is_told_and_holds_nothing_up(copies: Copies, tmp_path: Path) -> None:
    """No place for a bundle, and a copy that has ended meanwhile: a reason each, and no more."""
    blocked = tmp_path / "duplicates"
    blocked.write_text("a file stands where the folder should be")
    living, ended = copies.start(), copies.start()
    found = copies.found()
    os.kill(ended, signal.SIGKILL)
    wait_until(lambda: copies.ended(ended), 10, "it has ended")
    told = {one.pid: one for one in dump_lookalikes(found, blocked, 60.0)}
    assert [one.dir for one in told.values()] == [None, None]
    assert "is a file" in (told[living].problem or "")
    free = {one.pid: one for one in dump_lookalikes(found, tmp_path / "free", 60.0)}
    assert free[living].dir is not None
    assert "no process" in (free[ended].problem or "")
    assert [one.pid for one in end_lookalikes(current(), found, grace_s=5)] == [living]


def test_another_users_copy_is_only_listed(copies: Copies) -> None:
    """Never a signal to somebody else's process."""
    copy = copies.start()
    (one,) = copies.found()
    theirs = msgspec.structs.replace(one, same_user=False)
    assert list(dump_lookalikes((theirs,), Path("/nowhere"), 60.0)) == []
    assert list(end_lookalikes(current(), (theirs,), grace_s=0.1)) == []
    assert not copies.ended(copy)
