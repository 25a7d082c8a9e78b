"""`wtrain doctor`: what it says of a machine, tried on this one and told of others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import run_wtrain
from watchdog_train.client.libraries import HOOKS
from watchdog_train.doctor import machine
from watchdog_train.doctor.gpus import described
from watchdog_train.doctor.libraries import judged, libraries
from watchdog_train.system.portable import PortableSystem

RANGES = {row[1]: (row[2], row[3]) for row in HOOKS.values()}


def test_a_version_outside_of_its_range_is_said() -> None:
    """Steps will not be seen then, and a person should know before the night."""
    found = {
        "python": "3.11.7",
        "torch": "1.13.1+cu117",
        "transformers": "5.23.0",
        "lightning": "?",
    }
    said = {check.name: check for check in judged(found, RANGES, "python")}
    assert set(said) == set(found)
    assert (said["torch"].status, said["transformers"].status) == ("warning", "ok")
    assert "armed for 2.1 up to, but not 3.0" in said["torch"].says
    assert said["lightning"].status == "warning"
    assert said["torch"].mend


def test_an_interpreter_that_cannot_be_asked(tmp_path: Path) -> None:
    """No traceback: a line that says what to name."""
    (check,) = libraries(str(tmp_path / "nothing"))
    assert check.status == "warning"
    assert "--python" in str(check.mend)


def test_who_holds_gpu_memory_is_named() -> None:
    """Pid, command and user; a container tells nobody."""
    device = {
        "index": 0,
        "name": "H100",
        "memory_used_bytes": 61 * 10**9,
        "memory_total_bytes": 80 * 10**9,
        "processes": [{"pid": 7, "memory_bytes": 60 * 10**9, "who": "pid 7 (python, user alice)"}],
    }
    (check,) = described({"devices": [device]})
    assert check.status == "warning"
    assert "pid 7 (python, user alice) with 60.0 GB" in check.says
    (hidden,) = described({"devices": [device], "foreign_pids": True})
    assert "alice" not in hidden.says
    (broken,) = described({"problem": "NVML gave no answer in time"})
    assert broken.status == "warning"


def test_the_first_line_says_what_nobody_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the platform is one that is only written for."""
    assert "nobody has run here: GPUs" in machine.never_run(PortableSystem()).says
    monkeypatch.setattr(sys, "platform", "darwin")
    check = machine.never_run(PortableSystem())
    assert "tested by nobody" in check.says
    assert check.status == "warning"


def test_a_directory_that_is_not_there_fails(tmp_path: Path) -> None:
    """A save would end the training."""
    check = machine.disk(PortableSystem(), tmp_path / "nowhere")
    assert check.status == "failure"
    assert "--checkpoints" in str(check.mend)


@pytest.mark.processes
def test_on_this_machine(tmp_path: Path) -> None:
    """Every check has an answer; what failed has a cure, and the exit code says so."""
    args = ("doctor", "--json", "--python", sys.executable, "--checkpoints", str(tmp_path / "no"))
    done = run_wtrain(*args, cwd=tmp_path).check(1)
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    checks = {check["name"]: check for check in answer["checks"]}
    assert next(iter(checks)) == "platform"
    assert {"stacks", "orphans", "signals", "network", "heartbeats", "python"} <= set(checks)
    assert all(c["mend"] for c in checks.values() if c["status"] in ("failure", "warning"))
