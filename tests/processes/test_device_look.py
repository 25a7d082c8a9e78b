"""Stack samples of ranks that wait for their GPUs: real processes in native code, without a GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nvml import library
from tests.processes.collecting import request_for
from tests.support import wait_until, write_slot
from watchdog_train.core.model import EvidenceResult, Member
from watchdog_train.core.model.explanation import CollectiveWait
from watchdog_train.core.model.waits import DeviceWait, FileWait
from watchdog_train.evidence.collect import collect
from watchdog_train.system import proc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="py-spy")

RANK = """
import ctypes, os, sys, threading, time
spin = ctypes.CDLL(sys.argv[1]).cudaStreamSynchronize
kind = sys.argv[2]

def item(step):
    stop = ctypes.c_int(0)
    if kind == "loops":
        threading.Timer(0.3, lambda: setattr(stop, "value", 1)).start()
    spin(ctypes.byref(stop))

def work():
    while True:
        pass

if kind == "works":
    threading.Thread(target=work, daemon=True).start()
open(f"ready-{os.getpid()}", "w").close()
if kind == "elsewhere":
    os.open("fifo", os.O_WRONLY)
for step in range(1000):
    item(step)
"""
Start = Callable[..., Member]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def rank(kind: str = "spins", number: int = 0) -> Member:
        command = [sys.executable, "-c", RANK, str(library()), kind]
        process = subprocess.Popen(command, cwd=tmp_path)
        started.append(process)
        wait_until((tmp_path / f"ready-{process.pid}").exists, 30, "it is ready")
        stat = proc.read_stat(process.pid)
        return Member(pid=process.pid, start=stat.start, role="rank", rank=number, name="python")

    yield rank
    for process in started:
        process.kill()
        process.wait(10)


def sample(tmp_path: Path, *ranks: Member, **changes: object) -> EvidenceResult:
    changes = {"deadline_s": 20.0, **changes}
    return collect(request_for(tmp_path, ranks, "look", device=True, **changes))


def test_a_wait_that_goes_on_looks_the_same_and_a_loop_of_waits_does_not(
    start: Start, tmp_path: Path
) -> None:
    """By native call, frames and local variables: the loop is in the same line at each sample."""
    waits, loops = start(), start("loops", 1)
    for member, same in ((waits, True), (loops, False)):
        first, second = (sample(tmp_path, member).device for _ in range(2))
        assert first.stands
        assert (first.waits, first.stands == second.stands) == (True, same)
        assert second.others_cpu_s - first.others_cpu_s < 0.5


def test_another_thread_that_computes_is_seen(start: Start, tmp_path: Path) -> None:
    """Only the CPU time of the waiting thread is disregarded."""
    member = start("works")
    first = sample(tmp_path, member).device
    assert first is not None

    def works() -> bool:
        again = sample(tmp_path, member).device
        return again is not None and again.others_cpu_s - first.others_cpu_s > 0.5

    wait_until(works, 60, "the other thread has worked")


def test_the_rank_elsewhere_is_the_root(start: Start, tmp_path: Path) -> None:
    """It opens a FIFO that nobody reads, and two others wait for their GPUs."""
    subprocess.run(["mkfifo", str(tmp_path / "fifo")], check=True)
    ranks = (start(number=0), start("elsewhere", 1), start(number=2))
    found = sample(tmp_path, *ranks)
    assert found.device.stands
    explanation = found.explanation
    assert (explanation.root.who.rank, type(explanation.root.doing)) == (1, FileWait)
    assert {victim.who.rank for victim in explanation.victims} == {0, 2}
    assert {type(victim.how) for victim in explanation.victims} <= {DeviceWait, CollectiveWait}
    assert found.patience.row == "fifo"


@pytest.mark.parametrize(("beat_s_ago", "taken"), [(1.0, False), (100.0, True)])
def test_a_process_that_makes_steps_is_not_stopped_for_native_stacks(
    start: Start, tmp_path: Path, beat_s_ago: float, taken: bool
) -> None:
    """Its Python frames are read without a stop; the sample says that it could not be read."""
    slots = tmp_path / "slots"
    slots.mkdir()
    member = start()
    beat_ns = int(time.monotonic_ns() - 1e9 * beat_s_ago)
    write_slot(slots, member.pid, W_START=member.start, W_LAST_BEAT_NS=beat_ns)
    found = sample(tmp_path, member, slot_dir=str(slots)).device
    assert bool(found.stands) is taken
