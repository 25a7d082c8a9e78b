"""Control groups of Linux: used only where one was given to us to divide, and empty at the end.

The tests need root and a mounted hierarchy of version 2. Delegation is played as systemd shows it:
by an attribute of the group that the supervisor runs in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_groups import hierarchy, removed
from tests.scenarios.checks import assert_tree_is_gone
from tests.support import (
    bin_path,
    is_alive,
    program_command,
    start_wtrain,
    wait_until,
    write_fast_config,
)

if sys.platform != "linux":
    pytest.skip("of Linux", allow_module_level=True)

from watchdog_train.system import control_group
from watchdog_train.system.control_group import ControlGroup, delegated, remove
from watchdog_train.system.linux import LinuxSystem

pytestmark = [pytest.mark.processes]


@pytest.fixture
def given() -> Iterator[Path]:
    """A group that says that it is delegated; nobody is in it."""
    folder = hierarchy() / f"wtrain-test-{os.getpid()}"
    try:
        folder.mkdir()
        os.setxattr(folder, "trusted.delegate", b"1")
    except OSError as error:
        pytest.skip(f"no group can be made here: {error}")
    yield folder
    wait_until(lambda: removed(folder), 20, "the group is empty")


def inside(folder: Path, *command: str) -> tuple[str, ...]:
    """A command that begins in this group."""
    return ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(folder), *command)


def wtrain_inside(folder: Path) -> tuple[str, ...]:
    return inside(folder, str(bin_path("wtrain")))


SAYS = "from watchdog_train.system.control_group import delegated; print(delegated())"


def test_only_what_was_given_is_divided(given: Path) -> None:
    """A group of root's own belongs to whoever manages it; so does one below a given one."""
    ask = inside(given, sys.executable, "-c", SAYS)
    assert subprocess.check_output(ask, text=True).strip() == str(given)
    below = given / "below"
    below.mkdir()
    ask = inside(below, sys.executable, "-c", SAYS)
    assert subprocess.check_output(ask, text=True).strip() == "None"
    below.rmdir()
    os.removexattr(given, "trusted.delegate")
    ask = inside(given, sys.executable, "-c", SAYS)
    assert subprocess.check_output(ask, text=True).strip() == "None"


@pytest.mark.parametrize(
    ("group", "mounts"),
    [
        ("", ""),
        ("0::/a (deleted)\n", "30 20 0:1 / /g rw - cgroup2 cgroup2 rw\n"),
        ("0::/../a\n", "30 20 0:1 / /g rw - cgroup2 cgroup2 rw\n"),
        ("0::/a\n", "30 20 0:1 /elsewhere /g rw - cgroup2 cgroup2 rw\n"),
        ("0::/a\n", "30 20 0:1 / /g rw - cgroup cgroup rw,memory\n"),
        ("4:memory:/a\n", "nonsense\n30 20\n - cgroup2 \n"),
    ],
)
def test_where_it_is_not_known_none_is_used(tmp_path: Path, group: str, mounts: str) -> None:
    """Version 1, another namespace, a group that is gone, and what nobody has written like this."""
    (tmp_path / "cgroup").write_text(group)
    (tmp_path / "mountinfo").write_text(mounts)
    assert delegated(str(tmp_path)) is None


SFT = "/user.slice/user@7.service/app.slice/sft.scope"


@pytest.mark.parametrize(
    ("group", "answer", "expected"),
    [
        (SFT, f"echo ControlGroup={SFT}; echo Delegate=yes", True),
        (SFT, f"echo ControlGroup={SFT}; echo Delegate=no", False),
        (SFT, "echo ControlGroup=/elsewhere/sft.scope; echo Delegate=yes", False),
        (SFT, "exit 1", False),
        (SFT, "exec sleep 60", False),
        (f"{SFT}/below", f"echo ControlGroup={SFT}; echo Delegate=yes", False),
        ("/user.slice/--now.scope ", "echo ControlGroup=$6; echo Delegate=yes", False),
    ],
)
def test_systemd_is_believed_about_our_own_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, answer: str, expected: bool
) -> None:
    """A tool that fails, hangs, or speaks of something else gives us nothing to divide."""
    tool = tmp_path / "systemctl"
    tool.write_text(f'#!/bin/sh\n[ "$1" = --user ] || exit 1\n{answer}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(control_group, "ANSWER_S", 0.5)
    control_group.systemd_says_so.cache_clear()
    assert control_group.systemd_says_so(group) is expected
    control_group.systemd_says_so.cache_clear()


def test_a_group_elsewhere_is_not_opened(given: Path) -> None:
    """Its name comes from a record in the run directory."""
    if delegated() is not None:
        pytest.skip("the tests themselves run in a group that is theirs to divide")
    with pytest.raises(OSError, match="not a group below"):
        ControlGroup(str(given))
    assert LinuxSystem().group_name("run", 1) is None


def test_a_group_that_is_busy_for_a_moment_goes_after_it(given: Path) -> None:
    """The last threads of a process end after it is shown as a zombie."""
    group = given / "attempt"
    (group / "below").mkdir(parents=True)
    with subprocess.Popen(inside(group / "below", "sleep", "600")) as last:
        wait_until((group / "below" / "cgroup.procs").read_text, 10, "it is in")
        assert not remove(group, within_s=0.05)
        assert is_alive(last.pid)
        threading.Timer(0.2, last.kill).start()
        assert remove(group, within_s=20.0)


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.timeout(120)
def test_a_run_in_a_group_leaves_nothing_in_it(given: Path, tmp_path: Path) -> None:
    """A helper without token and family is known by the group, and ended; the group is gone.

    A daemon that is no part of the training is left, in the group that it would be in without us.
    """
    config = write_fast_config(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, time\n"
        "wait = 'import time; time.sleep(600)'\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    argv = [__import__('sys').executable, '-c', wait]\n"
        "    child = subprocess.Popen(argv, env={}, start_new_session=True)\n"
        "    nothing = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.DEVNULL)\n"
        "    daemon = subprocess.Popen(argv, start_new_session=True, **nothing)\n"
        "    open('helper.tmp', 'w').write(f'{child.pid} {daemon.pid}')\n"
        "    os.rename('helper.tmp', 'helper.txt')\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(600)\n"
    )
    options = ("run", "--config", str(config), "--", sys.executable, str(script))
    running = start_wtrain(*options, cwd=tmp_path, wtrain=wtrain_inside(given))
    launched = running.wait_for("attempt_launched", 60)
    wait_until((tmp_path / "helper.txt").exists, 30, "the helper runs")
    helper, daemon = map(int, (tmp_path / "helper.txt").read_text().split())
    (group,) = [path for path in given.iterdir() if path.is_dir()]
    members = {int(line) for line in (group / "cgroup.procs").read_text().split()}
    assert {launched["pid"], launched["keeper_pid"], helper, daemon} <= members
    running.wait_for("daemons_judged", 30, lambda event: len(event["daemons"]) == 2)
    assert running.pid not in members
    os.kill(running.pid, signal.SIGINT)
    run = running.result(60)
    assert run.returncode == 130, run.describe()
    assert not is_alive(helper), run.describe()
    assert not run.of_type("noticed"), run.describe()
    assert is_alive(daemon), run.describe()
    assert str(daemon) in (given / "cgroup.procs").read_text().split(), run.describe()
    assert not group.exists()
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.timeout(120)
def test_a_hang_in_a_group_is_restarted(given: Path, tmp_path: Path) -> None:
    """Each attempt has a group of its own."""
    config = write_fast_config(tmp_path)
    command = program_command("ignore_sigterm.py")
    options = ("run", "--config", str(config), "--", *command)
    running = start_wtrain(*options, cwd=tmp_path, wtrain=wtrain_inside(given))
    run = running.result(110)
    assert run.returncode == 0, run.describe()
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    assert not [path for path in given.iterdir() if path.is_dir()], run.describe()
    assert_tree_is_gone(run)
