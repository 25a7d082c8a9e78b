"""The stand-in for NVML: a library of ours that says what a test has written into a file.

Its numbers are those of an H100 of 700 W, from public captures of nvidia-smi where a
name here says so; all others, in this file and in the tests, are assumed.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

GB = 1 << 30
LIMIT_W = 700
MEMORY = 81559 << 20
IDLE_W = 70
"""69 and 71 W of 700 W at 0 %, 81559 MiB: https://github.com/NVIDIA/nccl/issues/1967"""
STUCK_W = 152
"""Of 700 W at 100 % in a collective that hangs: https://github.com/NVIDIA/nccl/issues/1550; about
100 W in https://github.com/NVIDIA-NeMo/Speech/issues/9291. Both below our limit of 25 %."""
FULL_W = 600
"""Within the 500 to 690 W of healthy training in https://github.com/NVIDIA-NeMo/Speech/issues/9291"""
OFF_THE_BUS = 79
"""The Xid of a GPU whose calls return "GPU is lost", 15 in nvml.h:
https://github.com/leptonai/gpud/issues/604"""
LOST = 15
NAMES = (
    "ComputeRunningProcesses_v3",
    "UUID",
    "Name",
    "UtilizationRates",
    "PowerUsage",
    "MemoryInfo",
)
ALL_LOST = {f"nvmlDeviceGet{name}": LOST for name in NAMES}


@functools.cache
def library() -> Path:
    """The built library; skips the test where there is no compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang) to build the stand-in for NVML")
    built = Path(tempfile.mkdtemp(prefix="nvml-")) / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("standin.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True)
    return built


class Gpus:
    """The devices as the driver shows them from now on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.txt"
        self.hung = folder / "gpus.txt.hung"
        """Made when a call does not return."""
        self.env = {
            "NVML_STANDIN": str(self.path),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (str(library().parent), os.environ.get("LD_LIBRARY_PATH")))
            ),
        }

    def show(self, *devices: Sequence[str], calls: Mapping[str, int] | None = None) -> None:
        """Lines for each device; `calls` return these codes instead of an answer, -1 never."""
        lines = [f"all devices {len(devices)}"]
        lines += [f"{index} {line}" for index, told in enumerate(devices) for line in told]
        lines += [f"call {name} {code}" for name, code in (calls or {}).items()]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(self.path)


def device(
    *held: tuple[int, int], util: int = 57, watts: int = 350, more: Sequence[str] = ()
) -> list[str]:
    """A device of 80 GiB; `held`: pid and GB of each process."""
    return [
        f"util {util}",
        f"power_mw {watts * 1000}",
        f"limit_mw {LIMIT_W * 1000}",
        f"memory {MEMORY}",
        "pcie_tx_kb 300",
        "pcie_rx_kb 300",
        *(f"process {pid} {size * GB}" for pid, size in held),
        *more,
    ]
