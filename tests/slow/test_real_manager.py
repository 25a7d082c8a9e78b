"""The service file under a real systemd user manager, in a world of its own (as root)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import (
    REPOSITORY,
    children_of,
    of_type,
    program_command,
    read_log,
    run_command,
    run_directories,
    scenario_environment,
    signals_of,
    wait_until,
    write_fast_config,
    wtrain_of,
)

SYSTEMD = "/usr/lib/systemd/systemd"
GROUPS = "/sys/fs/cgroup"
WORLD = f"""\
umount -R {GROUPS} && mount -t cgroup2 cgroup2 {GROUPS} || exit 3
mkdir -p "$0/user@0.service" && echo $$ >"$0/user@0.service/cgroup.procs" || exit 3
mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system || exit 3
{SYSTEMD} --user --unit=basic.target &
wait
"""
"""The manager wants to believe that systemd has started this machine, and must not be pid 1.

It finds one hierarchy of groups, of version 2, and is in a group that is called as a user manager's
is: below that it makes and leaves its own. The argument is the group above it.
"""
TOOLS = ("unshare", "nsenter", "systemctl", "systemd-run")
UNIT = "wtrain.service"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's"),
    pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        not Path(SYSTEMD).exists() or not all(map(shutil.which, TOOLS)),
        reason="systemd, unshare or nsenter is not installed",
    ),
]


def hierarchy() -> Path:
    """Where the whole hierarchy is mounted; skips the test where it is not."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, about = line.partition(" - ")
        if about.startswith("cgroup2 ") and mount.split()[3] == "/":
            return Path(mount.split()[4])
    pytest.skip("no hierarchy of version 2 is mounted here")


def removed(folder: Path, *, with_those_below: bool = False) -> bool:
    """A group goes only when nobody is in it and, unless they go too, none is below it."""
    below = os.walk(folder, topdown=False) if with_those_below else ()
    try:
        for each in (*(path for path, _, _ in below), folder):
            if os.path.isdir(each):
                os.rmdir(each)
    except OSError:
        return False
    return True


class Manager:
    """A systemd user manager, and commands beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.group = hierarchy() / f"wtrain-test-manager-{os.getpid()}"
        self.runtime, self.home = folder / "runtime", folder / "home"
        for each in (self.runtime, self.home):
            each.mkdir(mode=0o700)
        self.env = {
            **scenario_environment(folder),
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
        }
        self.log = (folder / "manager.log").open("wb")
        self.world = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
             "sh", "-c", WORLD, f"{GROUPS}/{self.group.name}"],
            env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def begin(self) -> None:
        """It listens, and commands can be run beside it."""
        wait_until((self.runtime / "systemd" / "private").exists, 30, "the manager listens")
        self.init = children_of(self.world.pid)[0]

    def enter(self, *command: str) -> list[str]:
        """A command where the manager's processes are."""
        here = f"--wd={self.folder}"
        return ["nsenter", "--target", str(self.init), "--mount", "--pid", here, *command]

    def inside(self, *command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return run_command(self.enter(*command), env=self.env, timeout_s=timeout_s, code=None)

    def systemctl(self, *words: str) -> str:
        """What it says; it must succeed."""
        done = self.inside("systemctl", "--user", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shown(self) -> Mapping[str, str]:
        """State of the unit."""
        wanted = "--property=ActiveState,MainPID,NRestarts"
        told = self.systemctl("show", wanted, UNIT)
        return dict(line.partition("=")[::2] for line in told.splitlines())

    def close(self) -> None:
        self.world.send_signal(signal.SIGKILL)
        self.world.wait(10)
        self.log.close()
        wait_until(
            lambda: removed(self.group, with_those_below=True), 20, "the manager's groups are empty"
        )


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path)
    try:
        found.begin()
        yield found
    finally:
        found.close()


def test_a_service_is_watched_taken_up_again_and_stopped(tmp_path: Path, manager: Manager) -> None:
    """Killed with -9 it comes back and adopts; a stop saves first."""
    config = write_fast_config(tmp_path)
    unit = (REPOSITORY / "examples" / "wtrain.service").read_text()
    program = program_command("asks_to_stop.py")
    run = (wtrain_of(tmp_path), "run", "--config", config, "--", *program)
    for key, value in (("WorkingDirectory", tmp_path), ("ExecStart", " ".join(map(str, run)))):
        unit = re.sub(f"(?m)^{key}=.*", f"{key}={value}", unit)
    place = Path(manager.env["XDG_CONFIG_HOME"]) / "systemd" / "user"
    place.mkdir(parents=True)
    (place / UNIT).write_text(unit)
    manager.systemctl("daemon-reload")
    manager.systemctl("start", UNIT)
    first = manager.shown()
    assert first["ActiveState"] == "active"
    wait_until(lambda: run_directories(tmp_path), 30, "it has begun")
    (run,) = run_directories(tmp_path)
    wait_until(lambda: of_type(read_log(run), "first_step"), 60, "it trains")
    launched = of_type(read_log(run), "attempt_launched")

    manager.inside("kill", "-KILL", first["MainPID"])
    wait_until(lambda: of_type(read_log(run), "adopted"), 60, "the manager starts it again")
    second = manager.shown()
    assert (second["NRestarts"], second["MainPID"] != first["MainPID"]) == ("1", True)
    assert of_type(read_log(run), "attempt_launched") == launched, "the training lived on"
    assert manager.inside("kill", "-0", str(launched[0]["pid"])).returncode == 0

    manager.systemctl("stop", UNIT)
    assert manager.shown()["ActiveState"] in ("inactive", "failed")
    events = read_log(run)
    assert of_type(events, "run_finished")[0]["outcome"] == "stopped"
    assert not [one for one in signals_of(events) if one["signal"] == 9]
    assert of_type(events, "attempt_exited")[0]["code"] == 0
    assert list((tmp_path / "checkpoints-0").glob("step-*.pt")), "it saved"
    left = manager.inside("pgrep", "-f", "asks_to_stop|watchdog_train/keeper").stdout
    assert not left.strip()
