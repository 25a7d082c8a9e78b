"""The keeper dies and training goes on: how it ends is known all the same, where that can be."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_tree_is_gone
from tests.support import (
    CompletedRun,
    Event,
    RunningWtrain,
    children_of,
    is_alive,
    run_wtrain,
    sentence,
    start_fast,
    start_wtrain,
    wait_until,
)

GATED = "read _ <gate; echo on; exit {}"
"""Ends with this code once somebody has opened the gate."""
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def without_keeper(tmp_path: Path, command: Sequence[str]) -> tuple[RunningWtrain, Event]:
    """A run whose keeper was killed while its training waits at the gate; and its launch."""
    os.mkfifo(tmp_path / "gate")
    running = start_fast(tmp_path, command, "--on-crash", "stop")
    launched = running.wait_for("attempt_launched", 60)
    os.kill(launched["keeper_pid"], signal.SIGKILL)
    notice = running.wait_for("noticed", 60, lambda event: event["kind"] == "keeper")
    assert "is its parent now" in sentence(notice["why"])
    assert is_alive(launched["pid"])
    return running, launched


def open_gate(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("\n")


def assert_known(run: CompletedRun, code: int | None, number: int | None) -> None:
    exited = run.only("attempt_exited")
    assert (exited["code"], exited["signal"]) == (code, number), run.describe()
    assert exited["how_known"] == "parent", run.describe()
    assert_tree_is_gone(run)


@pytest.mark.timeout(110)
@pytest.mark.parametrize("deaths", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_keepers_that_are_killed_at_their_start(tmp_path: Path, deaths: int) -> None:
    """The attempt is tried again, and the training runs once; five such keepers are too many."""
    command = ("sh", "-c", "echo $$ >>ran")
    running = start_wtrain("run", "--max-restarts", "0", "--", *command, cwd=tmp_path)
    killed: set[int] = set()

    def kill_a_keeper() -> bool:
        for pid in set(children_of(running.pid)) - killed:
            if b"keeper/__main__.py" in command_of(pid):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        return len(killed) == deaths

    wait_until(kill_a_keeper, 60, "the keepers have started", poll_s=0.0)
    run = running.result(60)
    assert len(run.of_type("launch_postponed")) == min(deaths, 4), run.describe()
    if deaths == 5:
        run.check(78)
        assert "could not be started: the keeper (pid" in run.stderr
        assert not (tmp_path / "ran").exists()
    else:
        run.check(0)
        assert_tree_is_gone(run)
        run.only("attempt_launched")
        assert len((tmp_path / "ran").read_text().split()) == 1


@pytest.mark.needs_subreaper
@pytest.mark.parametrize(
    ("code", "outcome"), [(7, "failed"), pytest.param(0, "succeeded", marks=pytest.mark.slow)]
)
def test_exit_code_without_a_keeper(code: int, outcome: str, tmp_path: Path) -> None:
    """The supervisor has inherited the training, whose output and exit code still arrive."""
    running, _ = without_keeper(tmp_path, ("sh", "-c", GATED.format(code)))
    open_gate(tmp_path)
    run = running.result(90).check(code)
    assert_known(run, code, None)
    assert run.only("run_finished")["outcome"] == outcome
    assert run.stdout == "on\n"


@pytest.mark.slow
@pytest.mark.needs_subreaper
def test_signal_without_a_keeper(tmp_path: Path) -> None:
    """What has killed the training is known, too."""
    running, launched = without_keeper(tmp_path, ("sh", "-c", GATED.format(0)))
    os.kill(launched["pid"], signal.SIGKILL)
    run = running.result(90).check(137)
    assert_known(run, None, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.needs_subreaper
@pytest.mark.timeout(290)
@pytest.mark.parametrize("fails", [False, True], ids=["well", "a rank fails"])
def test_two_ranks_without_a_keeper(tmp_path: Path, fails: bool) -> None:
    """torchrun and its ranks go on, and its own exit code is that of the run."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "rank = os.environ['RANK']\n"
        "pathlib.Path('up' + rank).touch()\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        f"sys.exit(3 if rank == '1' and {fails} else 0)\n"
    )
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    running, _ = without_keeper(tmp_path, (*launch, str(script)))
    wait_until(lambda: all((tmp_path / name).exists() for name in ("up0", "up1")), 150, "both run")
    (tmp_path / "go").touch()
    run = running.result(100)
    code = 1 if fails else 0
    assert run.returncode == code, run.describe()
    assert_known(run, code, None)


@pytest.mark.slow
@pytest.mark.needs_subreaper
@pytest.mark.skipif(KERNEL < (6, 15), reason="the kernel tells nobody but the parent")
def test_keeper_of_an_adopted_run(tmp_path: Path) -> None:
    """A later supervisor is no ancestor and inherits nothing: the kernel tells how it ended."""
    os.mkfifo(tmp_path / "gate")
    first = start_fast(tmp_path, ("sh", "-c", GATED.format(7)), "--on-crash", "stop")
    launched = first.wait_for("attempt_launched", 60)
    os.kill(first.pid, signal.SIGKILL)
    first.result(10)
    second = start_wtrain("adopt", cwd=tmp_path)
    second.wait_for("adopted", 30)
    second.wait_for("progress", 30)
    os.kill(launched["keeper_pid"], signal.SIGKILL)
    notice = second.wait_for("noticed", 60, lambda event: event["kind"] == "keeper")
    assert "only on Linux 6.15 and newer" in sentence(notice["why"])
    open_gate(tmp_path)
    run = second.result(90).check(7)  # not SIGPIPE: somebody takes what it writes
    assert run.stdout == "on\n"
    exited = run.only("attempt_exited")
    assert (exited["code"], exited["how_known"]) == (7, "kernel"), run.describe()
    status = run_wtrain("status", "--json", cwd=tmp_path).json()
    assert (status["outcome"], status["exit_code"]) == ("failed", 7)


@pytest.mark.needs_subreaper
@pytest.mark.needs_open_files
def test_who_is_left_keeps_no_pump_without_a_keeper(tmp_path: Path) -> None:
    """A daemon that stays has the output open: whoever drains it ends with the run."""
    daemon = f"{sys.executable} -c 'import time; please_stay = time.sleep(90)'"
    script = f"setsid {daemon} & echo $! >daemon; {GATED.format(0)}"
    (tmp_path / "wtrain.yaml").write_text("stopping: {leave: [please_stay]}\n")
    os.mkfifo(tmp_path / "gate")
    running = start_wtrain("run", "--", "sh", "-c", script, cwd=tmp_path)
    launched = running.wait_for("attempt_launched", 60)
    running.wait_for("daemons_judged", 60)
    os.kill(launched["keeper_pid"], signal.SIGKILL)
    running.wait_for("noticed", 60, lambda event: event["kind"] == "keeper")
    [pump] = wait_until(
        lambda: [pid for pid in children_of(running.pid) if b"drain.json" in command_of(pid)],
        20,
        "the pump in the keeper's place",
    )
    open_gate(tmp_path)
    run = running.result(60).check(0)
    daemon_pid = int((tmp_path / "daemon").read_text())
    assert is_alive(daemon_pid), run.describe()
    os.kill(daemon_pid, signal.SIGKILL)
    assert not is_alive(pump), run.describe()
    assert run.stdout == "on\n"


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
