"""`wtrain doctor`: what it says of a machine, tried on this one and told of others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from watchdog_train.cli import doctor
from watchdog_train.cli.doctor import described
from watchdog_train.core.model.gpu import GpuDevice, GpuProcess, GpuReading
from watchdog_train.system.portable import PortableSystem


def test_who_holds_gpu_memory_is_named() -> None:
    device = GpuDevice(
        index=0,
        name="H100",
        memory_used_bytes=61 * 10**9,
        memory_total_bytes=80 * 10**9,
        processes=(GpuProcess(pid=os.getpid(), memory_bytes=60 * 10**9),),
    )
    (check,) = described(GpuReading(devices=(device,)), PortableSystem())
    assert check.status == "warning"
    assert f"pid {os.getpid()} (" in check.says
    assert "with 55.9 GiB" in check.says
    (hidden,) = described(GpuReading(devices=(device,), foreign_pids=True), PortableSystem())
    assert str(os.getpid()) not in hidden.says
    (broken,) = described(GpuReading(problem="NVML gave no answer in time"), PortableSystem())
    assert broken.status == "warning"


def test_the_first_line_says_what_nobody_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nobody has run here: GPUs" in doctor.never_run(PortableSystem()).says
    monkeypatch.setattr(sys, "platform", "darwin")
    check = doctor.never_run(PortableSystem())
    assert "tested by nobody" in check.says
    assert check.status == "warning"


@pytest.mark.parametrize(
    ("system", "processor", "preset"),
    [
        ("darwin", "arm64", "apple-silicon"),
        ("darwin", "x86_64", "default"),
        ("win32", "AMD64", "windows"),
        ("linux", "aarch64", "default"),
    ],
)
def test_the_preset_that_fits_is_named(
    system: str, processor: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: processor)
    says = doctor.preset().says
    assert says.startswith(f"{preset}: " if preset == "default" else f"{preset} (wtrain run --")


def test_a_directory_that_is_not_there_fails(tmp_path: Path) -> None:
    check = doctor.disk(PortableSystem(), tmp_path / "nowhere")
    assert check.status == "failure"
    assert "--checkpoints" in str(check.mend)
