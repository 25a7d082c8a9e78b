"""`wtrain doctor`: what it says of a machine, tried on this one and told of others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from watchdog_train.doctor import machine, night
from watchdog_train.doctor.machine import described
from watchdog_train.system.portable import PortableSystem


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
    assert "pid 7 (python, user alice) with 55.9 GiB" in check.says
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


def test_logout_is_read_from_its_files(tmp_path: Path) -> None:
    """Later files win; who lingers is left alone."""
    (tmp_path / "run/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text("[Login]\n#KillUserProcesses=no\n")
    assert next(night.logout(tmp_path, "mia")).status == "ok"
    late = tmp_path / "etc/systemd/logind.conf.d/50.conf"
    late.write_text("[Login]\nKillUserProcesses=yes\n")
    check = next(night.logout(tmp_path, "mia"))
    assert check.status == "failure"
    assert "enable-linger" in str(check.mend)
    (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/linger/mia").touch()
    assert [each.status for each in night.logout(tmp_path, "mia")] == ["ok"]
    assert list(night.logout(tmp_path / "nowhere", "mia")) == []


@pytest.mark.processes
def test_a_fault_handler_answers_here() -> None:
    """Really tried; an interpreter that is none is said."""
    assert machine.fault_handler(sys.executable).status == "ok"
    assert machine.fault_handler("/bin/false").status == "warning"
    assert machine.fault_handler("/nowhere/python").status == "failure"
