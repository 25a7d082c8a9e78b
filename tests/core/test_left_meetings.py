"""What supervisors of a job have told each other goes when none of them can be alive."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core.job.peers import Summary
from watchdog_train.supervisor.job import machine_of
from watchdog_train.supervisor.left_meetings import SILENT_S, left_meetings
from watchdog_train.supervisor.leftover import Leftover
from watchdog_train.supervisor.machine import Machine
from watchdog_train.system import current

SYSTEM = current()
HERE = machine_of(SYSTEM)
ME = SYSTEM.identity(os.getpid())
HOUR_S = 3600.0


def summary(task: int, **changes: Any) -> Summary:
    """A word of a supervisor of this machine that is gone."""
    assert ME is not None
    me = {"machine": HERE, "pid": ME.pid, "start": ME.start + 1}
    return b.summary(**{"task": task, "run_id": f"r{task}-20261122-000000-0000", **me, **changes})


def elsewhere(task: int, **changes: Any) -> Summary:
    return summary(task, host="beta", machine="beta/another-boot/pid:[1]", **changes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a job in a directory that several machines share."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    path = tmp_path / "meet" / f"wtrain-{os.getuid()}-jobs" / "nodes-nodes-x-1"
    path.mkdir(parents=True, mode=0o700)
    return path


def told(folder: Path, *words: Summary, age_s: float = 2 * HOUR_S) -> None:
    """These records, so old."""
    at = time.time() - age_s
    for word in words:
        path = folder / f"task-{word.task}.json"
        path.write_bytes(msgspec.json.encode(word))
        os.utime(path, (at, at))
    os.utime(folder, (at, at))


def found(
    folder: Path,
    *,
    older_than_s: float | None = None,
    held: frozenset[str] = frozenset(),
) -> Leftover | None:
    """What is said of the folder."""
    machine = Machine(
        runs=(),
        recorded={},
        finished=frozenset(),
        held=held,
        mapped=None,
        meetings=frozenset({str(folder.parent.parent)}),
        left={},
        living={},
    )
    rows = left_meetings(machine, SYSTEM, older_than_s=older_than_s)
    here = [one for one in rows if one.what == str(folder)]
    return here[0] if here else None


def test_supervisors_that_are_dead_here_are_told_by_their_pids(folder: Path) -> None:
    """Also of those that have said that they have ended."""
    told(folder, summary(0), elsewhere(1, finished=75))
    left = found(folder)
    assert left is not None
    assert left.removable
    assert left.why.startswith("no supervisor of this job has written for 0.1 days: task 0 (pid")


@pytest.mark.parametrize("age_s", [HOUR_S, 2 * SILENT_S])
def test_a_job_of_which_one_supervisor_lives_is_nobodys_leftover(
    folder: Path, age_s: float
) -> None:
    """By its pid on this machine, or by the lock of its run, however old its word is."""
    assert ME is not None
    told(folder, summary(0), summary(1, start=ME.start), age_s=age_s)
    assert found(folder, older_than_s=0.0) is None
    told(folder, summary(0), elsewhere(1), age_s=age_s)
    held = frozenset({"r1-20261122-000000-0000"})
    assert found(folder, older_than_s=0.0, held=held) is None


def test_of_another_machine_only_long_silence_tells(folder: Path) -> None:
    """Kept for a week, or as long as --older-than says."""
    told(folder, summary(0), elsewhere(1))
    assert found(folder) is None
    assert found(folder, older_than_s=HOUR_S * 3) is None
    assert found(folder, older_than_s=HOUR_S) is not None
    told(folder, summary(0), elsewhere(1), age_s=SILENT_S + HOUR_S)
    assert found(folder) is not None


def test_a_folder_in_use_or_without_a_word(folder: Path) -> None:
    """One that was changed just now is never shown; an empty one is kept like a silent one."""
    told(folder, summary(0), age_s=5.0)
    assert found(folder, older_than_s=0.0) is None
    (folder / "task-0.json").unlink()
    told(folder)
    assert found(folder) is None
    told(folder, age_s=SILENT_S + HOUR_S)
    assert found(folder) is not None


def test_another_container_of_this_boot_may_live(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pids say nothing here."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent.parent))
    host, boot, _ = HERE.split("/", 2)
    told(folder, summary(0, machine=f"{host}/{boot}/pid:[7]"))
    assert found(folder) is None
