"""Copies of a training that no run has recorded: listed with who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.report.why_text import why_text
from watchdog_train.supervisor.duplicates import find_lookalikes, training_key
from watchdog_train.system import current

pytestmark = pytest.mark.processes

SCRIPT = "import time; print('up', flush=True); time.sleep(600)"


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

    def found(self, *arguments: str, supervised: tuple[str, ...] = ()) -> tuple[e.Orphan, ...]:
        command = ("python", str(self.folder / "train.py"), *arguments)
        key = training_key(command, str(self.folder), os.environ)
        return find_lookalikes(current(), command, str(self.folder), key, supervised=supervised)

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
    assert [one.pid for one in found] == [copy, second, orphan]
    assert [one.run_id for one in found] == [None, None, "old"]
    first = found[0]
    told = why_text(first.why)
    for words in (" old", f"(pid {os.getpid()})", "not under wtrain", "user "):
        assert words in told
    assert "train.py --lr 1" in first.command
