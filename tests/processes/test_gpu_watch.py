"""The process that asks the GPU driver: one that answers, hangs, lies, dies, and has no rights."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import is_alive, wait_until
from watchdog_train.core.detection.gpu import job_use
from watchdog_train.core.model.gpu import GpuHold, GpuUse
from watchdog_train.report.why_text import holders_text
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.hands.gpu import (
    ANSWER_S,
    FIRST_ANSWER_S,
    RETRY_S,
    GpuMemory,
    GpuWatch,
)
from watchdog_train.system import current
from watchdog_train.system import gpu as system_gpu
from watchdog_train.system.strangers import stranger

pytestmark = pytest.mark.processes

TWO_GPUS = """
    from types import SimpleNamespace as Value
    class NVMLError(Exception): ...
    NVML_CLOCK_SM = 1
    nvmlEventTypeXidCriticalError = 8
    xids = [Value(eventData=79, device=1)]
    def nvmlInit(): ...
    def nvmlSystemGetDriverVersion(): return b"570.1"
    def nvmlDeviceGetCount(): return 2
    def nvmlDeviceGetHandleByIndex(index): return index
    def nvmlDeviceGetIndex(handle): return handle
    def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
    def nvmlDeviceGetName(handle): return "Fake"
    def nvmlDeviceGetUtilizationRates(handle): return Value(gpu=(57, 100)[handle], memory=1)
    def nvmlDeviceGetPowerUsage(handle): return 350_000
    def nvmlDeviceGetEnforcedPowerLimit(handle): return 700_000
    def nvmlDeviceGetMemoryInfo(handle): return Value(used=10 << 30, total=80 << 30)
    def nvmlDeviceGetClockInfo(handle, kind): return 990
    def nvmlDeviceGetMaxClockInfo(handle, kind): return 1980
    def nvmlDeviceGetCurrentClocksEventReasons(handle): return 0x20 | 0x1
    def nvmlDeviceGetTemperature(handle, kind): return 88
    def nvmlDeviceGetTotalEccErrors(handle, kind, counter): raise NVMLError("no rights")
    def nvmlDeviceGetMigMode(handle): raise NVMLError("not supported")
    def nvmlDeviceGetComputeRunningProcesses(handle):
        return [Value(pid=(4242, 5555)[handle], usedGpuMemory=9 << 30)]
    def nvmlEventSetCreate(): return "set"
    def nvmlDeviceRegisterEvents(handle, kind, events): ...
    def nvmlEventSetWait_v2(events, timeout):
        if not xids: raise NVMLError("timeout")
        return xids.pop()
"""
SPLIT_WITHOUT_RIGHTS = """
    class NVMLError(Exception): ...
    def nvmlInit(): ...
    def nvmlDeviceGetCount(): return 1
    def nvmlDeviceGetHandleByIndex(index): return index
    def nvmlDeviceGetMigMode(handle): return [1, 1]
    def __getattr__(name):
        def refuse(*values): raise NVMLError("Insufficient Permissions")
        if name.startswith("nvml"): return refuse
        raise AttributeError(name)
"""
HANGS = """
    import time
    def nvmlInit(): time.sleep(600)
"""
HANGS_LATER = (
    TWO_GPUS
    + """
    looks = []
    def nvmlDeviceGetPowerUsage(handle):
        import time
        looks.append(handle)
        if len(looks) > 2: time.sleep(600)
        return 350_000
"""
)
DIES = "    import os; os._exit(9)\n"
NO_DRIVER = """
    class NVMLError_LibraryNotFound(Exception): ...
    def nvmlInit(): raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")
"""


@pytest.fixture
def table() -> ChildTable:
    return ChildTable(current())


@pytest.fixture
def watch(tmp_path: Path, table: ChildTable) -> Iterator[Callable[[str], GpuWatch]]:
    """A watch whose child finds a library of ours in the place of NVML's."""
    made: list[GpuWatch] = []

    def make(library: str) -> GpuWatch:
        (tmp_path / "pynvml.py").write_text(textwrap.dedent(library), encoding="utf-8")
        run = (
            f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); "
            f"sys.argv = ['gpu', '--every', '0.05']; "
            f"runpy.run_module({system_gpu.MODULE!r}, run_name='__main__')"
        )
        made.append(GpuWatch(table, [sys.executable, "-c", run]))
        return made[-1]

    yield make
    for each in made:
        each.close()
    wait_until(lambda: bool(table.poll()) or not table.running(), 15, "the child has ended")


def use_of(watched: GpuWatch, now: float, pids: set[int]) -> GpuUse | None:
    reading = watched.reading(now)
    return None if reading is None else job_use(reading, pids)


def first_use(watched: GpuWatch, pids: set[int]) -> GpuUse:
    found: list[GpuUse] = []

    def look() -> bool:
        use = use_of(watched, 1.0, pids)
        found.extend([use] if use is not None else [])
        return bool(found)

    wait_until(look, 20, "the GPUs are seen")
    return found[0]


def test_two_gpus_of_which_one_is_ours(
    watch: Callable[[str], GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Utilisation and power of the job's own device; the other's is nobody's business."""
    watched = watch(TWO_GPUS)
    if system_gpu.in_a_pid_namespace():
        use = first_use(watched, {4242})
        assert use.util == 57.0 or use.util == 100.0
        return
    use = first_use(watched, {4242})
    assert (use.util, use.power, use.clock, use.others) == (57.0, 0.5, 0.5, ())
    assert use.slowed_by == ("heat",)
    assert use.works
    assert watched.trouble is None


def test_a_split_gpu_without_rights_is_unknown(watch: Callable[[str], GpuWatch]) -> None:
    """Everything refused: no device of ours, no trouble, no guess."""
    watched = watch(SPLIT_WITHOUT_RIGHTS)

    def answered() -> bool:
        assert use_of(watched, 1.0, {4242}) is None
        return watched._reading is not None

    wait_until(answered, 20, "the driver has refused")
    assert watched.trouble is None


def test_a_driver_that_hangs_is_asked_again_and_given_up(
    watch: Callable[[str], GpuWatch], table: ChildTable
) -> None:
    """Each child that does not answer is ended; after the last try it is said, once for all."""
    watched = watch(HANGS)
    now = 0.0
    tries = set()
    for wait_s in (*RETRY_S, 0.0):
        assert use_of(watched, now, {1}) is None
        (child,) = table.running()
        tries.add(child.pid)
        assert use_of(watched, now + FIRST_ANSWER_S + 1, {1}) is None
        wait_until(lambda: bool(table.poll()), 15, "the hanging child was ended")
        now += FIRST_ANSWER_S + wait_s + 2
    assert watched.trouble == f"the driver has not answered for {FIRST_ANSWER_S:.0f} s (4 tries)"
    assert len(tries) == 4
    assert use_of(watched, now + 1e6, {1}) is None
    assert table.running() == ()


def test_a_driver_that_hangs_later_leaves_the_signal_unknown(
    watch: Callable[[str], GpuWatch], table: ChildTable
) -> None:
    """What was said before it hung says nothing about now."""
    watched = watch(HANGS_LATER)
    pids = {4242}
    assert first_use(watched, pids).power == 0.5
    assert use_of(watched, 1.0 + ANSWER_S / 2 + 1, pids) is None
    assert use_of(watched, 1.0 + ANSWER_S + 1, pids) is None
    wait_until(lambda: bool(table.poll()), 15, "the hanging child was ended")
    assert watched.trouble is None  # it will be tried again


def test_a_child_that_dies_is_tried_again(
    watch: Callable[[str], GpuWatch], table: ChildTable
) -> None:
    """Not at once: a library that crashes must not keep a core busy."""
    watched = watch(DIES)
    use_of(watched, 0.0, {1})
    (child,) = table.running()
    wait_until(lambda: bool(table.poll()), 15, "the child has died")
    assert use_of(watched, 1.0, {1}) is None
    assert use_of(watched, 1.0 + RETRY_S[0] - 1, {1}) is None
    assert table.running() == ()
    use_of(watched, 1.0 + RETRY_S[0] + 1, {1})
    assert [again.pid != child.pid for again in table.running()] == [True]


def test_no_driver_is_told_and_not_tried_again(
    watch: Callable[[str], GpuWatch], table: ChildTable
) -> None:
    """An answer for ever."""
    watched = watch(NO_DRIVER)

    def told() -> bool:
        use_of(watched, 0.0, {1})
        return watched.trouble is not None

    wait_until(told, 20, "the missing driver was told")
    assert "NVML Shared Library Not Found" in (watched.trouble or "")
    wait_until(lambda: bool(table.poll()) or not table.running(), 15, "the child has ended")
    use_of(watched, 1e6, {1})
    assert table.running() == ()


def test_the_child_ends_with_its_listener(
    watch: Callable[[str], GpuWatch], table: ChildTable
) -> None:
    """Nobody is left behind."""
    watched = watch(TWO_GPUS)
    first_use(watched, {4242})
    (child,) = table.running()
    watched.close()
    wait_until(lambda: bool(table.poll()), 15, "the child has ended")
    assert not is_alive(child.pid)


TAKEN_MEANWHILE = (
    TWO_GPUS
    + """
    import json, os, sys
    caller = sys._getframe()
    while "INITIAL_PID_NAMESPACE" not in caller.f_globals: caller = caller.f_back
    # This driver knows the pids of this machine, also where the test runs in a container.
    caller.f_globals["INITIAL_PID_NAMESPACE"] = os.stat("/proc/self/ns/pid").st_ino
    def holders(): return json.load(open(os.environ["HOLDERS"]))
    def nvmlDeviceGetMemoryInfo(handle):
        used = sum(size for _, size in holders()) if handle == 0 else 0
        return Value(used=used << 30, total=80 << 30)
    def nvmlDeviceGetComputeRunningProcesses(handle):
        if handle: return []
        return [Value(pid=pid, usedGpuMemory=size << 30) for pid, size in holders()]
"""
)


def test_who_has_taken_the_memory_after_the_job_is_named(
    watch: Callable[[str], GpuWatch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked anew after the job's end: a process of ours first, then a stranger with its user."""
    system = current()
    job = subprocess.Popen(["sleep", "60"])
    other = subprocess.Popen(["sleep", "60"])
    who = system.identity(job.pid)
    assert who is not None

    def holds(*holders: tuple[int, int]) -> None:
        (tmp_path / "new").write_text(json.dumps(holders))
        (tmp_path / "new").rename(tmp_path / "holders")

    monkeypatch.setenv("HOLDERS", str(tmp_path / "holders"))
    holds((job.pid, 60))
    watched = watch(TAKEN_MEANWHILE)
    memory = GpuMemory(watched, system, lambda pid: stranger(system, pid))

    def held() -> GpuHold | None:
        found = memory.held(system.monotonic(), {who})
        return found if found is not None and found.answered else None

    def taken() -> GpuHold | None:
        found = held()
        return found if found is not None and found.others else None

    def free() -> bool:
        found = held()
        return found is not None and found.is_free

    try:
        reading = wait_until(lambda: watched.reading(system.monotonic()), 20, "the GPUs are seen")
        memory.follow(reading, {job.pid})
        found = wait_until(held, 20, "an answer of a time after the end")
        assert [one.pid for one in found.ours] == [job.pid]
        assert not found.others
        job.kill()
        job.wait(10)
        holds((other.pid, 61))
        found = wait_until(taken, 20, "the stranger is seen")
        assert not found.ours
        assert found.others[0].name == stranger(system, other.pid)
        assert "user " in found.others[0].name
        assert memory.others(system.monotonic(), {who}) == (holders_text(found.others),)
        holds()
        wait_until(free, 20, "the memory is free")
    finally:
        for process in (job, other):
            process.kill()
            process.wait(10)


def test_no_gpu_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, or without a device file, nobody is started."""
    monkeypatch.setattr(system_gpu, "_DEVICE_FILES", ("/nonexistent/nvidiactl",))
    assert not system_gpu.may_be_there()
    monkeypatch.setattr(system_gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(system_gpu, "_DEVICE_FILES", ("/dev/null",))
    assert not system_gpu.may_be_there()
