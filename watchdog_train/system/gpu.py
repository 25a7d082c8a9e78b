"""NVIDIA GPUs through NVML, read in a process of its own.

A call into a driver that has lost its GPU may never return and cannot be interrupted: callers
run `python -I -m watchdog_train.system.gpu` with a deadline and read JSON, one
core.model.gpu.GpuReading a line. No other module imports NVML.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.core.model.gpu import GpuDevice, GpuProcess, GpuReading, GpuXid

MODULE = "watchdog_train.system.gpu"
EVERY_S = 2.0
MOST_DEVICES = 64
MOST_PROCESSES = 64
MOST_XIDS = 32
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the Linux kernel's include/linux/proc_ns.h."""
_RDMA = "/sys/class/infiniband"
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
_SLOWED_BY = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat",
    0x80: "power brake",
}
"""NVML's clocksEventReasons that slow work down; idle and chosen clocks do not."""


def is_asked(setting: str = "auto") -> bool:
    """Whether NVML is asked, by `detection.gpu`: auto needs an NVIDIA device and the library.

    Imports nothing. Never automatic on Windows, where a pipe cannot be read without waiting.
    """
    if setting != "auto":
        return setting == "on"
    if importlib.util.find_spec("pynvml") is None:
        return False
    return any(os.path.exists(path) for path in _DEVICE_FILES)


def command(*, once: bool = False) -> list[str]:
    """The command of a reader of GPUs; -I as for all tasks of wtrain."""
    return [sys.executable, "-I", "-m", MODULE, *(["--once"] if once else [])]


class Looker:
    """An open NVML; every answer that the driver refuses is None.

    Raises: what NVML raises without a driver.
    """

    def __init__(self, nvml: Any) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        count = min(nvml.nvmlDeviceGetCount(), MOST_DEVICES)
        self._handles = [(index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
        self._driver = _text(self._ask(nvml.nvmlSystemGetDriverVersion))
        self._xids: deque[GpuXid] = deque(maxlen=MOST_XIDS)
        self._events = self._register()
        self._rdma: tuple[float, int | None] = (0.0, None)

    def reading(self) -> GpuReading:
        self._take_xids()
        at = time.monotonic()
        return GpuReading(
            devices=tuple(self._device(index, handle) for index, handle in self._handles),
            xids=tuple(self._xids),
            driver=self._driver,
            foreign_pids=in_a_pid_namespace(),
            at=at,
            rdma_bytes_s=self._rdma_bytes_s(at),
        )

    def _rdma_bytes_s(self, now: float) -> float | None:
        at, before = self._rdma
        total = rdma_bytes()
        self._rdma = (now, total)
        return None if total is None or before is None else (total - before) / max(0.1, now - at)

    def _pcie_bytes_s(self, handle: Any) -> float | None:
        """NVML counts kilobytes, to the device and from it, for 20 ms each."""
        ways = [_number(self._get("nvmlDeviceGetPcieThroughput", handle, way)) for way in (0, 1)]
        return None if None in ways else 1024 * sum(way or 0.0 for way in ways)

    def _ask(self, question: Any, *values: Any) -> Any:
        try:
            return question(*values)
        except Exception:  # noqa: BLE001 - not supported, no permission, MIG: all mean unknown
            return None

    def _get(self, name: str, *values: Any) -> Any:
        question = getattr(self._nvml, name, None)
        return None if question is None else self._ask(question, *values)

    def _device(self, index: int, handle: Any) -> GpuDevice:
        nvml = self._nvml
        util = self._get("nvmlDeviceGetUtilizationRates", handle)
        memory = self._get("nvmlDeviceGetMemoryInfo", handle)
        clock = getattr(nvml, "NVML_CLOCK_SM", 1)
        mig = self._get("nvmlDeviceGetMigMode", handle)
        reasons = self._get("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = self._get("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        slowing = _whole(reasons) or 0
        return GpuDevice(
            index=index,
            uuid=_text(self._get("nvmlDeviceGetUUID", handle)),
            name=_text(self._get("nvmlDeviceGetName", handle)),
            util=_number(getattr(util, "gpu", None)),
            power_w=_watts(self._get("nvmlDeviceGetPowerUsage", handle)),
            power_limit_w=_watts(self._get("nvmlDeviceGetEnforcedPowerLimit", handle)),
            memory_used_bytes=_whole(getattr(memory, "used", None)),
            memory_total_bytes=_whole(getattr(memory, "total", None)),
            clock_mhz=_number(self._get("nvmlDeviceGetClockInfo", handle, clock)),
            clock_max_mhz=_number(self._get("nvmlDeviceGetMaxClockInfo", handle, clock)),
            slowed_by=tuple(sorted({name for bit, name in _SLOWED_BY.items() if slowing & bit})),
            mig=bool(mig[0]) if isinstance(mig, (list, tuple)) and mig else None,
            processes=self._processes(handle),
            pcie_bytes_s=self._pcie_bytes_s(handle),
        )

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        found = self._get("nvmlDeviceGetComputeRunningProcesses", handle)
        if not isinstance(found, (list, tuple)):
            return None
        return tuple(
            GpuProcess(pid=int(one.pid), memory_bytes=_whole(getattr(one, "usedGpuMemory", None)))
            for one in found[:MOST_PROCESSES]
        )

    # -- errors that the driver reports without being asked -----------------------------------
    def _register(self) -> Any:
        """Needs no rights, in contrast to the kernel's log; None if not available."""
        nvml = self._nvml
        events = self._get("nvmlEventSetCreate")
        kind = getattr(nvml, "nvmlEventTypeXidCriticalError", None)
        if events is None or kind is None:
            return None
        for _, handle in self._handles:
            self._get("nvmlDeviceRegisterEvents", handle, kind, events)
        return events

    def _take_xids(self) -> None:
        wait = getattr(self._nvml, "nvmlEventSetWait_v2", None)
        if self._events is None or wait is None:
            return
        for _ in range(MOST_XIDS):
            event = self._ask(wait, self._events, 0)
            code = _whole(getattr(event, "eventData", None))
            if code is None:
                return
            index = _whole(self._get("nvmlDeviceGetIndex", getattr(event, "device", None)))
            self._xids.append(GpuXid(index=index, code=code))


def rdma_bytes(folder: str = _RDMA) -> int | None:
    """Sent and received over all InfiniBand ports (words of 4 bytes); None if one is unreadable."""
    ports = Path(folder).glob("*/ports/*")
    names = ("port_xmit_data", "port_rcv_data")
    try:
        return 4 * sum(
            int((port / "counters" / name).read_text()) for port in ports for name in names
        )
    except (OSError, ValueError):
        return None


def in_a_pid_namespace() -> bool:
    """Whether the driver, which knows the machine's pids, knows others than we do."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE
    return False


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:120] if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and 0 <= value < 1e15 else None


def _whole(value: Any) -> int | None:
    """None for 2**64-1, with which NVML marks an unknown value."""
    number = _number(value)
    return int(number) if number is not None else None


def _watts(value: Any) -> float | None:
    number = _number(value)
    return number / 1000 if number is not None else None


def _write(reading: GpuReading) -> bool:
    """Write a line; False once the reader is gone."""
    try:
        os.write(1, msgspec.json.encode(reading) + b"\n")
    except OSError:
        return False
    return True


def main() -> int:
    """Read the GPUs again and again until the reader is gone."""
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]

        looker = Looker(pynvml)
    except Exception as error:  # noqa: BLE001 - no library, no driver, no rights: it is told
        _write(GpuReading(problem=f"NVML: {type(error).__name__}: {error}"[:300]))
        return 3
    while _write(looker.reading()) and "--once" not in sys.argv:
        time.sleep(EVERY_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
