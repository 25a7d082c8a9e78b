"""The process that asks the GPU driver: one that answers, hangs, lies, dies, and has no rights."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nvml import ALL_LOST, FULL_W, GB, MEMORY, OFF_THE_BUS, Gpus, device
from tests.support import is_alive, wait_until
from watchdog_train.core.detection.gpu import job_use
from watchdog_train.core.model.gpu import GpuReading, GpuUse, GpuXid
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.hands.gpu import ANSWER_S, FIRST_ANSWER_S, RETRY_S, GpuWatch
from watchdog_train.system import current
from watchdog_train.system import gpu as system_gpu

TWO_GPUS = (
    device((4242, 9), more=("clock 990", "max_clock 1980", "reasons 33", "celsius 88")),
    device((5555, 9), util=100, watts=FULL_W),
)
NEVER = -1
CHILD = """
import os, sys
from watchdog_train.system import gpu
# The stand-in knows the pids of this machine, also where the test runs in a container.
gpu.INITIAL_PID_NAMESPACE = os.stat("/proc/self/ns/pid").st_ino
gpu.EVERY_S = 0.05
sys.exit(gpu.main())
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    found = Gpus(tmp_path)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def table() -> ChildTable:
    return ChildTable(current())


@pytest.fixture
def watch(gpus: Gpus, table: ChildTable) -> Iterator[GpuWatch]:
    """A watch whose child finds the stand-in in the place of NVML."""
    watched = GpuWatch(table, [sys.executable, "-c", CHILD])
    yield watched
    watched.close()
    wait_until(lambda: bool(table.poll()) or not table.running(), 15, "the child has ended")


def use_of(watch: GpuWatch, now: float, pids: set[int]) -> GpuUse | None:
    reading = watch.reading(now)
    return None if reading is None else job_use(reading, pids)


def child_ends(table: ChildTable) -> None:
    wait_until(lambda: bool(table.poll()), 15, "the child has ended")


def first_use(watch: GpuWatch, pids: set[int]) -> GpuUse:
    found: list[GpuUse] = []

    def look() -> bool:
        use = use_of(watch, 1.0, pids)
        found.extend([use] if use is not None else [])
        return bool(found)

    wait_until(look, 20, "the GPUs are seen")
    return found[0]


def test_two_gpus_of_which_one_is_ours(watch: GpuWatch, gpus: Gpus) -> None:
    """Utilisation, power and clock of the job's own device, and all that else was told."""
    gpus.show(*TWO_GPUS)
    use = first_use(watch, {4242})
    assert (use.util, use.power, use.clock, use.others) == (57.0, 0.5, 0.5, ())
    assert (use.works, use.slowed_by) == (True, ("heat",))
    reading = watch.reading(1.0)
    assert reading is not None
    assert (reading.driver, reading.xids) == ("stand-in--1", ())
    mine = reading.devices[0]
    assert (mine.key, mine.name) == ("GPU-0", "Stand-in-0")
    assert mine.mig is None  # not supported
    assert (mine.memory_used_bytes, mine.memory_total_bytes) == (9 * GB, MEMORY)
    assert watch.trouble is None


def test_a_device_that_tells_less(watch: GpuWatch, gpus: Gpus) -> None:
    """Split, shared, without a function, fallen off the bus: unknown, no trouble, no guess."""
    gpus.show(["mig 1"], calls={"nvmlDeviceGetComputeRunningProcesses_v3": 4})

    def told(wanted: Callable[[GpuReading], bool], why: str) -> GpuReading:
        found = [watch.reading(1.0)]

        def look() -> bool:
            found.append(watch.reading(1.0))
            return found[-1] is not None and wanted(found[-1])

        wait_until(look, 20, why)
        assert found[-1] is not None
        return found[-1]

    split = told(lambda reading: reading.devices[0].mig is True, "a split device")
    assert job_use(split, {4242}) is None
    gpus.show(
        device((4242, 9), (7, 1), more=("ecc 2",)),
        calls={"nvmlDeviceGetCurrentClocksEventReasons": 13, "nvmlEventSetWait_v2": 13},
    )
    shared = told(lambda reading: bool(reading.devices[0].processes), "a shared device")
    use = job_use(shared, {4242})
    assert use is not None
    assert (use.util, use.others) == (None, (7,))
    gpus.show(device((4242, 9), more=(f"xid {OFF_THE_BUS}",)), calls=ALL_LOST)
    lost = told(lambda reading: reading.devices[0].util is None, "a device off the bus")
    assert job_use(lost, {4242}) is None
    told(lambda reading: bool(reading.xids), "its Xid")
    assert watch.xids == (GpuXid(index=0, code=OFF_THE_BUS),)
    assert watch.trouble is None


def test_a_driver_that_hangs_is_asked_again_and_given_up(
    watch: GpuWatch, gpus: Gpus, table: ChildTable
) -> None:
    """Each child that does not answer is ended; after the last try it is said, once for all."""
    gpus.show(calls={"nvmlInitWithFlags": NEVER})
    now = 0.0
    tries = set()
    for wait_s in (*RETRY_S, 0.0):
        assert use_of(watch, now, {1}) is None
        (child,) = table.running()
        tries.add(child.pid)
        assert use_of(watch, now + FIRST_ANSWER_S + 1, {1}) is None
        child_ends(table)
        now += FIRST_ANSWER_S + wait_s + 2
    assert watch.trouble == f"the driver has not answered for {FIRST_ANSWER_S:.0f} s (4 tries)"
    assert len(tries) == 4
    assert use_of(watch, now + 1e6, {1}) is None
    assert table.running() == ()


def test_a_driver_that_hangs_later_leaves_the_signal_unknown(
    watch: GpuWatch, gpus: Gpus, table: ChildTable
) -> None:
    """What was said before it hung says nothing about now."""
    pids = {4242}
    gpus.show(*TWO_GPUS)
    assert first_use(watch, pids).power == 0.5
    gpus.show(*TWO_GPUS, calls={"nvmlDeviceGetPowerUsage": NEVER})
    wait_until(gpus.hung.exists, 20, "it hangs")
    watch.reading(1.0)  # the last words
    assert use_of(watch, 1.0 + ANSWER_S / 2 + 1, pids) is None
    assert use_of(watch, 1.0 + ANSWER_S + 1, pids) is None
    child_ends(table)
    assert watch.trouble is None  # it will be tried again


def test_a_child_that_dies_is_tried_again(watch: GpuWatch, gpus: Gpus, table: ChildTable) -> None:
    """Not at once: a library that crashes must not keep a core busy."""
    gpus.show(calls={"nvmlInitWithFlags": NEVER})
    use_of(watch, 0.0, {1})
    (child,) = table.running()
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: bool(table.poll()), 15, "the child has died")
    assert use_of(watch, 1.0, {1}) is None
    assert use_of(watch, 1.0 + RETRY_S[0] - 1, {1}) is None
    assert table.running() == ()
    use_of(watch, 1.0 + RETRY_S[0] + 1, {1})
    assert [again.pid != child.pid for again in table.running()] == [True]


def test_no_driver_is_told_and_not_tried_again(
    watch: GpuWatch, gpus: Gpus, table: ChildTable
) -> None:
    """An answer for ever."""
    assert not gpus.path.exists()

    def told() -> bool:
        use_of(watch, 0.0, {1})
        return watch.trouble is not None

    wait_until(told, 20, "the missing driver was told")
    assert "Driver Not Loaded" in (watch.trouble or "")
    wait_until(lambda: bool(table.poll()) or not table.running(), 15, "the child has ended")
    use_of(watch, 1e6, {1})
    assert table.running() == ()


def test_the_child_ends_with_its_listener(watch: GpuWatch, gpus: Gpus, table: ChildTable) -> None:
    """Nobody is left behind."""
    gpus.show(*TWO_GPUS)
    first_use(watch, {4242})
    (child,) = table.running()
    watch.close()
    child_ends(table)
    assert not is_alive(child.pid)


def test_no_gpu_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, or without a device file, nobody is started."""
    monkeypatch.setattr(system_gpu, "_DEVICE_FILES", ("/nonexistent/nvidiactl",))
    assert not system_gpu.is_asked()
    monkeypatch.setattr(system_gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(system_gpu, "_DEVICE_FILES", ("/dev/null",))
    assert not system_gpu.is_asked()


def test_bytes_of_infiniband_are_the_sum_over_all_ports(tmp_path: Path) -> None:
    """In words of 4 bytes, as the kernel counts them; unknown where one port cannot be read."""
    assert system_gpu.rdma_bytes(str(tmp_path)) == 0
    for port, words in (("mlx5_0/ports/1", 10), ("mlx5_1/ports/1", 20)):
        counters = tmp_path / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{words}\n")
        (counters / "port_rcv_data").write_text("5\n")
    assert system_gpu.rdma_bytes(str(tmp_path)) == 4 * 40
    (counters / "port_rcv_data").unlink()
    assert system_gpu.rdma_bytes(str(tmp_path)) is None
