"""A run as a service: what its manager hears, and the file that starts it."""

from __future__ import annotations

import os
import plistlib
import select
import shlex
import socket
import sys
from pathlib import Path

import pytest

from tests.support import is_alive, run_wtrain, start_wtrain, wait_until, write_fast_config

pytestmark = [
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="no such sockets"),
]

TRAINING = """
import os, time
import watchdog_train as wt
print("variables", [name for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC") if name in os.environ])
step = 0
while not os.path.exists("finish"):
    step += 1
    wt.beat(step)
    time.sleep(0.05)
"""


def heard(link: socket.socket) -> list[str]:
    """What has come so far."""
    lines: list[str] = []
    while select.select([link], [], [], 0)[0]:
        lines += link.recv(4096).decode().splitlines()
    return lines


def test_systemd_hears_that_we_live(tmp_path: Path) -> None:
    """Ready once training runs, alive as often as asked, then ending; training says nothing."""
    (tmp_path / "train.py").write_text(TRAINING)
    config = str(write_fast_config(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(str(tmp_path / "notify"))
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        run = start_wtrain(
            "run", "--config", config, "--", sys.executable, "train.py", cwd=tmp_path, env=env
        )
        lines: list[str] = []

        def is_fed() -> bool:
            lines.extend(heard(link))
            return lines.count("WATCHDOG=1") >= 4 and any("step" in line for line in lines)

        wait_until(is_fed, 30, "the watchdog is fed and the step told")
        assert lines[0] == "READY=1"
        (tmp_path / "finish").touch()
        done = run.result(30).check(0)
        lines += heard(link)
    assert lines.count("READY=1") == 1
    assert "STOPPING=1" in lines
    assert lines[-1].startswith("STATUS=exit code 0")
    assert "variables []" in done.stdout, done.describe()


def test_a_manager_that_never_listens_harms_nothing(tmp_path: Path) -> None:
    """The address is stale, and the queue of another one is full."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "finish").touch()
    env = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000"}
    run_wtrain("run", "--", sys.executable, "train.py", cwd=tmp_path, env=env).check(0)


def test_the_file_has_the_command_and_its_flags(tmp_path: Path) -> None:
    """What was typed for run is in it; a mistake in it is refused now and not at night."""
    command = (sys.executable, "train.py", "--lr", "1e-3")
    (tmp_path / "train.py").touch()
    options = ("--preset", "overnight", "--max-restarts", "3", "--with", "omp-1", "--name", "n1")
    made = run_wtrain("service", *options, "--kind", "launchd", "--", *command, cwd=tmp_path)
    plist = plistlib.loads(made.check(0).stdout.encode())
    words = plist["ProgramArguments"]
    assert words[1] == "run"
    assert words[-5:] == ["--", *command]
    given = set(zip(words[2:-5:2], words[3:-5:2], strict=True))
    assert given == set(zip(options[::2], options[1::2], strict=True))
    run_wtrain("service", "--preset", "nights", "--", *command, cwd=tmp_path).check(78)
    run_wtrain("service", "--env", "NO_SUCH_1", "--", *command, cwd=tmp_path).check(78)
    run_wtrain("service", "--", "no-such-command-here", cwd=tmp_path).check(78)


def test_it_is_written_where_services_are(tmp_path: Path) -> None:
    """For its owner alone, and never over another one."""
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "TOKEN": "s3cret"}
    options = ("service", "--kind", "systemd", "--write", "--env", "TOKEN", "--name", "n1")
    written = run_wtrain(*options, "--", "true", cwd=tmp_path, env=env).check(0)
    path = tmp_path / "config" / "systemd" / "user" / "wtrain-n1.service"
    assert "TOKEN=s3cret" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "systemctl --user start wtrain-n1" in written.stderr
    run_wtrain(*options, "--", "true", cwd=tmp_path, env=env).check(0)
    refused = run_wtrain(*options, "--", "false", cwd=tmp_path, env=env).check(78)
    assert str(path) in refused.stderr


@pytest.mark.slow
def test_started_again_it_goes_on_with_the_training_that_lives(tmp_path: Path) -> None:
    """What systemd does after our death: the same command line again."""
    (tmp_path / "train.py").write_text(TRAINING)
    config = str(write_fast_config(tmp_path))
    options = ("service", "--kind", "systemd", "--config", config)
    unit = run_wtrain(*options, "--", sys.executable, "train.py", cwd=tmp_path).check(0).stdout
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2])
    first = start_wtrain(*words[1:], cwd=tmp_path, wtrain=words[:1])
    launched = first.wait_for("first_step", 30) and first.wait_for("attempt_launched", 1)
    os.kill(first.pid, 9)
    first.process.wait(10)
    again = start_wtrain(*words[1:], cwd=tmp_path, wtrain=words[:1])
    again.wait_for("adopted", 30)
    assert is_alive(launched["pid"])
    (tmp_path / "finish").touch()
    done = again.result(30).check(0)
    assert len(done.of_type("attempt_launched")) == 1, done.describe()
