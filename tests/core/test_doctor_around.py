"""What doctor finds beside the training to come: on real processes, where that is cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.doctor import around
from watchdog_train.store.registry import LiveRun

HAS_TORCH_LOADED = """\
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    page = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["train.py"])
def pretender(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a file mapped that is called as torch's library is; its script's path."""
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"\0" * 4096)
    script = tmp_path / request.param
    script.parent.mkdir(exist_ok=True)
    script.write_text(HAS_TORCH_LOADED)
    command = [sys.executable, "-S", str(script), str(library)]
    env = {name: value for name, value in os.environ.items() if name != "WTRAIN_RUN_ID"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait(10)
    process.stdout.close()


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is loaded")
def test_a_training_that_runs_already_is_named(
    pretender: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """By its pid and command; when it has ended it is no more."""
    words = around.find_trainings()[pretender.pid]
    assert "its parent is gone" not in words
    (check,) = around.trainings({pretender.pid: words})
    assert check.status == "warning"
    assert f"pid {pretender.pid} (" in check.says
    pretender.kill()
    pretender.wait(10)
    wait_until(lambda: pretender.pid not in around.find_trainings(), 5, "it is gone")
    assert list(around.trainings({})) == []


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is loaded")
@pytest.mark.parametrize("pretender", ["watchdog_train/store_process.py"], indirect=True)
def test_the_store_beside_a_supervisor_is_no_training(pretender: subprocess.Popen[bytes]) -> None:
    """It has torch loaded, and is wtrain's own."""
    assert pretender.pid not in around.find_trainings()


def test_runs_without_a_supervisor_are_named() -> None:
    """A watched one is no news."""

    def run(name: str, supervised: bool | None) -> LiveRun:
        return LiveRun(
            run_id=name, run_dir=f"/r/{name}", pid=1, start=1, host="h", supervised=supervised
        )

    assert list(around.runs([run("a", True), run("b", None)])) == []
    (check,) = around.runs([run("a", True), *[run(f"lost-{i}", False) for i in range(6)]])
    assert check.says.startswith("6 of wtrain's runs have no supervisor: lost-0, ")
    assert "lost-5" not in check.says
    assert "wtrain adopt" in (check.mend or "")
