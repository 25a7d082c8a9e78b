"""A collector that is ended at its deadline: what it had by then is a bundle all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.collecting import request_for, state_of
from tests.support import wait_until
from watchdog_train.core.model import EvidenceResult, Member, Patience
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.bundle import read_bundle
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.evidence.request import RESULT_FILE, read_partial, read_result
from watchdog_train.explain.judge import judge
from watchdog_train.supervisor import tasks as tasks_module
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.tasks import Tasks
from watchdog_train.system import current
from watchdog_train.whole_files import replace_json

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="py-spy as a sibling"),
    pytest.mark.skipif(pyspy.find() is None, reason="py-spy is not installed"),
]


@pytest.fixture
def sleepers():
    code = "import time\ndef waits_here():\n    time.sleep(600)\nwaits_here()"
    found = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    for process in found:
        wait_until(lambda pid=process.pid: state_of(pid) == "S", 20, "the sleeper sleeps")
    yield found
    for process in found:
        process.kill()
        process.wait()


def one_is_never_read(tmp_path, monkeypatch, pid):
    """py-spy as it is, but that it never comes back from one process."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / pyspy.NAME
    fake.write_text(
        f'#!/bin/sh\ncase " $* " in *" {pid} "*) exec sleep 600;; esac\nexec {pyspy.find()} "$@"\n'
    )
    fake.chmod(0o755)
    # The collector looks for it beside its interpreter.
    start = (
        "import runpy, sys; sys.executable, sys.argv = sys.argv[1], sys.argv[2:]; "
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -I -c "{start}" "$0" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return fake


@pytest.mark.parametrize("how", [pytest.param("asked", marks=pytest.mark.slow), "starved"])
def test_what_was_collected_outlives_its_collector(tmp_path, monkeypatch, sleepers, how):
    """The stacks that came back, the reason for the rest, and no tool left behind.

    It can be diagnosed where it lies.
    """
    read, never = sleepers
    fake = one_is_never_read(tmp_path, monkeypatch, never.pid)
    monkeypatch.setattr(tasks_module, "EXTRA_S", 3600.0)
    members = [Member(pid=p.pid, start=0, role="rank", rank=at) for at, p in enumerate(sleepers)]
    request = request_for(tmp_path, members, deadline_s=600.0, process_s=600.0)
    table = ChildTable(current())
    tasks = Tasks(table)

    def step():
        table.poll()
        tasks.poll()

    tasks.collect(request)
    (collector,) = table.running()
    try:
        wait_until(
            lambda: (known := read_partial(request)) is not None and known.captured == 1,
            60,
            "the draft has the first stack",
        )
        if how == "starved":
            os.kill(collector.pid, signal.SIGSTOP)
        table.end(collector)
        wait_until(lambda: step() or tasks.evidence is not None, 60, "an answer")
        result = tasks.evidence
        assert result.dir == (request.out_dir if how == "asked" else request.staging_dir)
        assert [row.captured for row in result.processes] == [True, False]
        assert result.missing[0].pid == never.pid
        assert "ended before it was done" in result.problem
        kept = read_bundle(Path(result.dir))
        assert "waits_here" in [frame.name for frame in kept.evidence.processes[0].main.frames]
        assert not kept.evidence.processes[1].threads
        assert judge(read_inputs((result.dir,)).evidence).root
        assert read.poll() is None
        assert never.poll() is None
        wait_until(lambda: not _runs(fake), 10, "no tool is left")
    finally:
        table.end_all()


def _runs(fake):
    """Whether a tool of ours still runs: by its own command line or that of what it became."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    ours = str(fake).encode() in file.read()
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    tool = file.read().startswith((b"sleep\0", b"/bin/sh\0" + bytes(fake)))
            except OSError:
                continue
            if ours and tool:
                return True
    return False


def test_an_older_look_is_no_answer_to_a_newer_one(tmp_path, monkeypatch):
    """Looks share a folder: one that dies leaves no answer, not that of the look before it."""
    folder = tmp_path / "staging"
    folder.mkdir()
    request = request_for(tmp_path, [], "look", out_dir=str(folder))
    older = EvidenceResult(
        stall_id="0001", dir=str(folder), patience=Patience(row="proven"), seconds=1.0
    )
    replace_json(folder / RESULT_FILE, older)
    assert read_result(request) == older
    monkeypatch.setattr(sys, "executable", "/bin/false")
    table = ChildTable(current())
    tasks = Tasks(table)
    tasks.collect(request)
    wait_until(lambda: table.poll() and (tasks.poll() or tasks.look), 60, "an answer")
    assert tasks.look.patience.row == "unknown"
    assert "exit code 1" in tasks.look.problem
