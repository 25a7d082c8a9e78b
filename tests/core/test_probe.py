"""`wtrain probe`: a supervisor at work is never called dead, and a dead one never alive."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from watchdog_train.cli import main, probe
from watchdog_train.client import layout
from watchdog_train.core.fold.state import RunState
from watchdog_train.core.model import ProcessId
from watchdog_train.core.notices.vitals import (
    BLIND_AT_WORK_S,
    BLIND_S,
    Answer,
    Probe,
    Vitals,
    answer,
)
from watchdog_train.store import registry
from watchdog_train.store.control import ControlPage, read_vitals
from watchdog_train.store.run_directory import create
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.system import current

NOW = 5000.0
STEPS = Vitals(4242, 7, NOW, "running", 2, step=1234, progressed_s=NOW - 3, trains=True)


def asked(probe: Probe, vitals: Vitals | None, *, alive: bool | None = True) -> Answer:
    return answer(probe, vitals, NOW, alive=alive)


def test_a_training_that_makes_steps() -> None:
    told = "running, attempt 2, step 1,234, last progress 3 s ago"
    assert asked("startup", STEPS) == asked("liveness", STEPS) == Answer(True, f"alive: {told}")
    assert asked("readiness", STEPS) == Answer(True, f"ready: {told}")


@pytest.mark.parametrize("state", get_args(RunState))
@pytest.mark.parametrize("silent_s", [0.0, BLIND_S - 1])
def test_no_stage_of_a_run_is_called_dead(state: str, silent_s: float) -> None:
    """A kubelet would end the container, and with it the evidence of the stall."""
    vitals = STEPS._replace(state=state, trains=False, turned_s=NOW - silent_s, progressed_s=1.0)
    assert asked("liveness", vitals).ok
    assert asked("startup", vitals).ok
    assert not asked("readiness", vitals).ok


@pytest.mark.parametrize("state", ["collecting", "stopping", "killing", "backoff"])
def test_one_at_work_on_a_stall_is_given_longer(state: str) -> None:
    """What would be lost then cannot be had again; for ever it is not."""
    vitals = STEPS._replace(state=state, turned_s=NOW - BLIND_AT_WORK_S + 1)
    assert asked("liveness", vitals).ok
    assert not asked("liveness", vitals._replace(turned_s=NOW - BLIND_AT_WORK_S - 1)).ok


@pytest.mark.parametrize("probe", get_args(Probe))
def test_the_dead_and_the_blind_are_named(probe: Probe) -> None:
    """Its process is gone, or its loop has not turned for long."""
    dead = asked(probe, STEPS, alive=False)
    assert not dead.ok
    assert dead.words.startswith("dead: the supervisor (pid 4242) is gone; running")
    blind = asked(probe, STEPS._replace(turned_s=NOW - BLIND_S - 1))
    assert not blind.ok
    assert blind.words.startswith("blind: the loop of the supervisor (pid 4242) has not turned")
    gone = asked(probe, None, alive=False)
    assert not gone.ok


def test_what_has_ended_is_not_dead() -> None:
    """The container may still have something to do after wtrain."""
    ended = STEPS._replace(state="finished", trains=False, turned_s=1.0)
    for alive in (True, False):
        assert asked("liveness", ended, alive=alive).ok
        assert not asked("readiness", ended, alive=alive).ok


def test_what_cannot_be_told_is_not_called_dead() -> None:
    for alive in (True, None):
        assert "probably alive" in asked("liveness", None, alive=alive).words
        assert asked("liveness", None, alive=alive).ok
        assert not asked("readiness", None, alive=alive).ok
    assert asked("liveness", STEPS, alive=None).ok


def test_the_words_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / layout.CONTROL_FILE
    assert get_args(RunState) == layout.RUN_STATES
    with ControlPage.create(path) as page:
        assert read_vitals(path) is None
        page.request_save()
        page.tell(STEPS)
        assert read_vitals(path) == STEPS
        silent = STEPS._replace(trains=False, waits="Rank 0 waits for 10.0.0.1. A stall at 10 min.")
        page.tell(silent)
        assert read_vitals(path) == silent
        assert asked("readiness", silent).words.endswith(f" 3 s ago. {silent.waits[:-1]}")
        page.tell(silent._replace(waits="\u00e4" * layout.WAITS_BYTES))
        assert set(getattr(read_vitals(path), "waits", "")) == {"\u00e4"}
        bare = Vitals(1, 0, 0.5, "idle", 0)
        page.tell(bare)
        assert read_vitals(path) == bare
        assert (page.word(layout.C_SAVE_REQUEST), page.word(layout.C_STOP_REQUEST)) == (1, 0)
        # Another process has asked for stacks; a page that is cut short afterwards is mended.
        with ControlPage.open(path) as other:
            other.request_dump()
        page.tell(STEPS)
        os.truncate(path, 8)
        assert read_vitals(path) is None
        page.tell(STEPS)
        assert (read_vitals(path), page.word(layout.C_DUMP_REQUEST)) == (STEPS, 1)
    for content in (b"", b"x" * layout.CONTROL_BYTES):
        path.write_bytes(content)
        assert read_vitals(path) is None


class Place:
    """Runs that this process is listed as the supervisor of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.me = current().identity(os.getpid())

    def run(self, *, alive: bool = True, **vitals: Any) -> RunDirectory:
        """A listed run with a page of its own."""
        assert self.me is not None
        run = create(self.folder / "wtrain-runs", "sft")
        who = self.me if alive else ProcessId(2**22 - 3, 1)
        slots = self.folder / f"slots-{run.run_id}"
        slots.mkdir()
        told = STEPS._replace(turned_s=time.monotonic(), progressed_s=None)
        with ControlPage.create(slots / layout.CONTROL_FILE) as page:
            page.tell(told._replace(pid=who.pid, start=who.start, **vitals))
        assert registry.register(run, who, boot_id=current().boot_id(), slot_dir=slots)
        return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("WTRAIN_RUNS_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main.run(["probe", *arguments])
    shown = capsys.readouterr()
    assert not shown.err
    return code, shown.out.strip()


def test_the_command(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, 0 or 1; without RUN every live one is asked, and one that is dead long ago is not.

    Of no run it cannot say that it lives.
    """
    code, words = said(capsys)
    assert (code, words[:7]) == (1, "no run:")
    old = place.run(alive=False)
    code, words = said(capsys)
    assert (code, words[:5]) == (1, "dead:")
    run = place.run()
    assert said(capsys) == (0, f"alive: running, attempt 2, step 1,234 ({run.run_id})")
    assert said(capsys, "--readiness", "--runs-dir", "wtrain-runs")[0] == 0
    assert said(capsys, "--startup", run.run_id)[0] == 0
    assert said(capsys, old.run_id)[0] == 1
    others_now = ProcessId(place.me.pid, place.me.start - 1)
    assert registry.register(old, others_now, boot_id=current().boot_id())
    assert said(capsys, old.run_id)[0] == 1
    assert said(capsys, "nobody")[0] == 1
    blind = place.run(turned_s=time.monotonic() - 60)
    assert said(capsys)[0] == 0
    code, words = said(capsys, "--max-age", "30s")
    assert code == 1
    assert words.startswith("blind:")
    assert words.endswith(f"({blind.run_id})")
    code, words = said(capsys, "--json", "--max-age", "30", run.run_id)
    assert (code, json.loads(words)["ok"]) == (0, True)
    assert main.run(["probe", "--max-age", "soon"]) == 78


def test_a_run_that_has_ended(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run = create(place.folder / "wtrain-runs", "sft")
    assert said(capsys)[0] == 1
    run.events.write_bytes(b'{"v":1,"seq":9,"type":"run_finished","exit_code":0}\n')
    code, words = said(capsys)
    assert (code, words[:6]) == (0, "ended:")
    assert said(capsys, "--readiness")[0] == 1


def test_files_that_do_not_answer_are_no_death(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that hangs; the supervisor behind it may be at work."""
    run = create(place.folder / "wtrain-runs", "sft")
    go_on = threading.Event()
    monkeypatch.setattr(probe, "ANSWER_S", 0.05)
    monkeypatch.setattr("watchdog_train.store.lock.is_held", lambda _run: go_on.wait(20))
    try:
        code, words = said(capsys, run.run_id)
        assert (code, "do not answer" in words) == (0, True)
        assert said(capsys, "--readiness", run.run_id)[0] == 1
    finally:
        go_on.set()
