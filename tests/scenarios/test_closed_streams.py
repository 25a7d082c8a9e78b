"""What a shell has closed or limited: it works as with plain Python, or is refused at the start."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import bin_path, run_command, run_directories, scenario_environment, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="closes streams as sh does")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="limits a second user, or unshares")
NOBODY = 65534
SCRIPT = """\
import os, sys
sys.stdin and sys.stdin.read()
print("on stdout")
print("on stderr", file=sys.stderr)
open("opened.txt", "w").write("\\n".join(os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)))
sys.exit(5)
"""


def shell(line: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line],
        cwd=cwd,
        env=scenario_environment(cwd),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"]
)
def test_closed_standard_streams_change_nothing(closed: str, tmp_path: Path) -> None:
    """Exit code, and output on the streams that are open; no file of ours takes their numbers."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f"nohup {bin_path('wtrain')} run --max-restarts 0 -- {sys.executable} train.py"
    done = shell(f"{command} {closed}", tmp_path)
    assert done.returncode == 5, done
    assert ("on stdout" in done.stdout) == (">&- " not in f" {closed} ".replace("2>&-", "")), done
    assert ("on stderr" in done.stderr) == ("2>&-" not in closed), done
    opened = (tmp_path / "opened.txt").read_text().split("\n")
    assert all(name == "/dev/null" or name.startswith("pipe:") for name in opened), opened
    (run,) = run_directories(tmp_path)
    logs = "".join(path.read_text() for path in run.glob("attempts/0001/*.log"))
    assert "on stdout" in logs
    assert "on stderr" in logs


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_detached_run_starts_with_closed_streams(closed: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f"{bin_path('wtrain')} run -d --max-restarts 0 -- {sys.executable} train.py"
    done = shell(f"{command} {closed}", tmp_path)
    assert done.returncode == 0, done
    (run,) = run_directories(tmp_path)
    wait_until(lambda: b'"run_finished"' in (run / "events.jsonl").read_bytes(), 30, "it ends")
    assert b'"exit_code":5' in (run / "events.jsonl").read_bytes()


@pytest.mark.parametrize("command", ["status", "ps -a", "--version", "doctor", "stop x"])
def test_every_command_bears_closed_streams(command: str, tmp_path: Path) -> None:
    done = shell(f"{bin_path('wtrain')} {command} <&- >&- 2>&-", tmp_path)
    open_ones = shell(f"{bin_path('wtrain')} {command}", tmp_path)
    assert done.returncode == open_ones.returncode, (done, open_ones)


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("limit", [1, 5, 7, 11, 20])
def test_too_few_processes_are_refused_before_anything_is_started(
    limit: int, detached: bool, tmp_path: Path
) -> None:
    """By a user without other processes, all of which the kernel would count."""
    uid = 60_000 + limit + 100 * detached
    env = scenario_environment(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, uid, uid)
    # The interpreter may lie in a directory that only root can enter.
    capability = ("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")
    user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *capability)
    words = ("-d",) if detached else ()
    done = run_command(
        [*user, bin_path("wtrain"), "run", *words, "--", "touch", "started"],
        cwd=tmp_path,
        env=env,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)),
        code=78,
    )
    assert "too-few-processes" in done.stderr, done
    assert "ulimit -u" in done.stderr, done
    assert not (tmp_path / "started").exists()


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_pid_namespace_without_its_own_proc_is_refused(tmp_path: Path) -> None:
    """With its own it works."""
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    command = f"{bin_path('wtrain')} run -- {sys.executable} train.py"
    probe = shell("unshare --pid --fork --mount-proc true", tmp_path)
    if probe.returncode:
        pytest.skip(probe.stderr)
    for line in (command, command.replace("run --", "run -d --"), f"{bin_path('wtrain')} clean"):
        done = shell(f"unshare --pid --fork {line}", tmp_path)
        assert done.returncode == 78, done
        assert "--mount-proc" in done.stderr, done
    assert not (tmp_path / "started").exists()
    done = shell(f"unshare --pid --fork --mount-proc {command}", tmp_path)
    assert done.returncode == 0, done
    assert (tmp_path / "started").exists()
