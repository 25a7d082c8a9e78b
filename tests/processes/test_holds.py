"""What keeps a process from running: real freezers, a real debugger, and the text of cgroups."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.processes.collecting import collect_tree, freezer, state_of
from tests.support import wait_until
from watchdog_train.core.model.waits import Stopped
from watchdog_train.evidence.bundle import read_bundle
from watchdog_train.system import cgroup, current, proc
from watchdog_train.system.protocol import OUR_TOOL

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux holds them so")


def held(pid):
    return current().held(pid, state_of(pid))


@pytest.fixture
def sleeper():
    code = "import time\ndef waits_here():\n    time.sleep(600)\nprint(1, flush=True)\nwaits_here()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"
    yield process.pid
    process.kill()
    process.communicate(timeout=10)


@pytest.mark.parametrize("version", [1, 2])
def test_a_frozen_process_is_stopped_by_its_cgroup(version, sleeper, tmp_path):
    """Seen with the file that thaws it; its stacks are read without stopping it."""
    with freezer(version) as group:
        assert held(sleeper) is None
        group.freeze(sleeper)
        frozen = Stopped(freezer=str(group.file))
        assert held(sleeper) == frozen
        result = collect_tree(tmp_path, sleeper)
        assert result.captured == 1, result.missing
        (found,) = read_bundle(tmp_path / "out").evidence.processes
        assert (found.state, found.wait, found.main.frames[0].name) == ("T", frozen, "waits_here")
        group.thaw()
        assert held(sleeper) is None


@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb here")
@pytest.mark.parametrize("ours", [False, True])
def test_a_debugger_is_named_and_our_own_tool_is_none(ours, sleeper):
    """By the tracer's name and pid; a tool of ours has a mark in its environment."""
    environment = os.environ | ({OUR_TOOL: "1"} if ours else {})
    command = ["gdb", "-q", "-nx", "-p", str(sleeper)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    gdb = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    try:
        wait_until(lambda: state_of(sleeper) == "t", 30, "gdb holds it")
        found = held(sleeper)
        assert (found and (found.debugger.pid, found.debugger.name)) == (
            None if ours else (gdb.pid, "gdb")
        )
    finally:
        os.killpg(gdb.pid, signal.SIGKILL)  # it may be trying ptrace on a child of its own
        gdb.communicate(timeout=20)


@pytest.mark.parametrize(
    ("cgroups", "frozen", "thaws"),
    [
        ("0::/a/b\n", "a/b/cgroup.freeze", "a/b/cgroup.freeze"),
        ("0::/a/b\n", "a/cgroup.freeze", "a/cgroup.freeze"),  # the group above
        ("0::/a/b\n", "a/c/cgroup.freeze", None),  # the group beside
        ("6:x:/\n0::/a\n", "unified/a/cgroup.freeze", "unified/a/cgroup.freeze"),
        ("6:freezer:/a\n", "freezer/a/freezer.self_freezing", "freezer/a/freezer.state"),
        ("6:cpu,freezer:/a\n", "freezer/a/freezer.self_freezing", "freezer/a/freezer.state"),
        ("4:memory:/a\n", "freezer/a/freezer.self_freezing", None),
        ("0::/docker/1/a\n", "cgroup.freeze", "cgroup.freeze"),  # a path of the host's
        ("0::/../a\n", "a/cgroup.freeze", None),  # above what this namespace shows
        ("", "cgroup.freeze", None),
        ("no line of a cgroup", "cgroup.freeze", None),
    ],
)
def test_which_cgroup_has_frozen_a_process(cgroups, frozen, thaws, tmp_path, monkeypatch):
    """Its own or one above, of either version."""
    monkeypatch.setattr(cgroup, "_CGROUP_ROOT", str(tmp_path))
    monkeypatch.setattr(cgroup, "_UNIFIED", str(tmp_path / "unified"))
    monkeypatch.setattr(proc, "text", lambda _: cgroups)
    (tmp_path / frozen).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / frozen).write_text("1\n")
    assert cgroup.frozen_by(1) == (str(tmp_path / thaws) if thaws else None)
    (tmp_path / frozen).write_text("0\n")
    assert cgroup.frozen_by(1) is None
