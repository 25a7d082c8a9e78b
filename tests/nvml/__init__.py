"""The stand-in for NVML: a library of ours that says what a test has written into a file.

No capture of a device was at hand: the numbers that tests write are assumed.
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
    """A device of 80 GB; `held`: pid and GB of each process."""
    return [
        f"util {util}",
        f"power_mw {watts * 1000}",
        f"limit_mw {LIMIT_W * 1000}",
        f"memory {80 * GB}",
        *(f"process {pid} {size * GB}" for pid, size in held),
        *more,
    ]
