"""A training in a frozen cgroup is a stopped training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.collecting import freezer
from tests.scenarios.checks import assert_never_killed
from tests.support import RunningWtrain, run_wtrain, start_fast, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has cgroups"),
]
TRAIN = """
import os, time
import watchdog_train as wt
while not os.path.exists("enough"):
    wt.beat()
    sum(range(100_000))
    time.sleep(0.01)
"""


@contextmanager
def frozen(version: int, tmp_path: Path) -> Iterator[tuple[RunningWtrain, int, Any]]:
    """A run whose training was frozen, as it has said."""
    (tmp_path / "train.py").write_text(TRAIN)
    with freezer(version) as group:
        running = start_fast(tmp_path, (sys.executable, "train.py"))
        running.wait_for("first_beat", 60)
        pid = running.wait_for("attempt_launched", 1)["pid"]
        group.freeze(pid)
        noticed = running.wait_for("noticed", 30)
        assert (noticed["kind"], noticed["pids"]) == ("stopped", [pid])
        assert noticed["why"]["held"]["freezer"] == str(group.file)
        yield running, pid, group


@pytest.mark.parametrize("version", [1, 2])
def test_a_frozen_training_is_reported_and_spared(version: int, tmp_path: Path) -> None:
    """Over every limit; with its cgroup and how to thaw it, and with a word when it continues."""
    with frozen(version, tmp_path) as (running, pid, group):
        first = running.wait_for("looked", 60)
        assert (first["patience"]["row"], first.get("limit_s")) == ("stopped", None)
        running.wait_for("looked", 60, lambda event: event["mono"] > first["mono"] + 8.0)
        text = f"rank 0 (pid {pid}) was frozen by the cgroup {group.folder}. To thaw it: echo "
        assert text in run_wtrain("status", cwd=tmp_path).check(0).stdout
        group.thaw()
        running.wait_for("noticed", 30, lambda event: event["kind"] == "continued")
        shown = run_wtrain("status", cwd=tmp_path).check(0).stdout
        assert f"rank 0 (pid {pid}) continued after" in shown
        assert "frozen" not in shown
        (tmp_path / "enough").touch()
        run = running.result(60).check(0)
    assert_never_killed(run)
    assert text in run.stderr
    assert "kill -CONT" not in run.stderr
    assert "and then continued" not in run.stderr


def test_what_survives_sigkill_in_a_frozen_cgroup_is_named(tmp_path: Path) -> None:
    """Version 1 keeps SIGKILL waiting: said at once, with how to thaw it."""
    with frozen(1, tmp_path) as (running, pid, group):
        run_wtrain("stop", "--now", cwd=tmp_path, timeout_s=60)
        survived = running.wait_for("survived_kill", 20)
        assert (survived["pids"], survived["why"]["code"]) == ([pid], "survived-frozen")
        run = running.result(30)
        text = f"frozen by the cgroup {group.folder}, so SIGKILL takes effect when it is thawed"
        assert text in run.stderr
        group.thaw()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10, "it dies when it is thawed")
