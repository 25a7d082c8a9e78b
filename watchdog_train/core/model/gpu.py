"""What GPUs show from outside, as values. A GPU whose meaning is not clear changes nothing."""

from __future__ import annotations

from typing import Literal

from watchdog_train.core.model.words import Value

FLAT_UTIL = 98.0
"""Per cent: at or above this some kernel ran all the time."""
IDLE_POWER_SHARE = 0.25
"""Of the power limit; work at full utilisation takes more. A kernel that only waits took 18 %
(measured on an H100). Low on purpose: a healthy job of small kernels takes little power, too,
and must count as alive."""
DeviceLack = Literal[
    "GPU-readings", "utilisation", "power", "power-of-own-steps", "full-clocks", "whole-GPUs",
    "GPUs-of-its-own", "PCIe-counters", "InfiniBand-counters", "CPU-time", "native-stacks",
    "all-ranks", "steps-of-all-ranks",
]  # fmt: skip
"""What a stall by device wait needs and does not have."""


class GpuProcess(Value):
    pid: int
    memory_bytes: int | None = None


class GpuDevice(Value):
    """One reading of one device. None: the driver gives no value."""

    index: int
    uuid: str | None = None
    name: str | None = None
    util: float | None = None
    """Per cent of the last second or less in which any kernel ran."""
    power_w: float | None = None
    power_limit_w: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    slowed_by: tuple[str, ...] = ()
    """Why its clock is reduced: heat, power, an external brake."""
    mig: bool | None = None
    """It is split; utilisation is then unavailable."""
    pcie_bytes_s: float | None = None
    """To and from the host, over the last 20 ms."""
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def key(self) -> str:
        """Equal for the same device in every reading."""
        return self.uuid or f"index {self.index}"


class GpuXid(Value):
    """A critical error that the driver reported during the run."""

    index: int | None
    code: int


class GpuReading(Value):
    devices: tuple[GpuDevice, ...] = ()
    xids: tuple[GpuXid, ...] = ()
    """The newest 32 since the first reading."""
    driver: str | None = None
    foreign_pids: bool = False
    """The driver's pids are those of another pid namespace: wtrain runs in a container."""
    problem: str | None = None
    """Why GPUs cannot be read, now or later."""
    at: float = 0.0
    """Monotonic clock of the machine, seconds; 0: unknown."""
    rdma_bytes_s: float | None = None
    """Over all InfiniBand ports of the machine since the reading before; None: not known."""


class GpuNeed(Value):
    """The most a job has held on one device; None: the driver gives no value."""

    device: str
    bytes: int | None


class GpuClaim(Value):
    needs: tuple[GpuNeed, ...] = ()
    beside: frozenset[int] = frozenset()
    """Pids of others that had memory on the same devices while it ran."""


class GpuHolder(Value):
    """A process with memory on a device that a job needs."""

    device: int
    pid: int
    memory_bytes: int | None = None
    name: str = ""
    """For a person: pid, command and user, as far as they are known."""


class GpuHold(Value):
    """What prevents another attempt."""

    ours: tuple[GpuHolder, ...] = ()
    others: tuple[GpuHolder, ...] = ()
    unnamed: tuple[int, ...] = ()
    """Devices with memory in use by processes that the driver does not name."""
    host: str = ""
    """The machine, as its tree names it."""
    answered: bool = True
    """False: the driver was asked and has not answered yet."""
    asked_at: float = 0.0

    @property
    def is_free(self) -> bool:
        return self.answered and not (self.ours or self.others or self.unnamed)


class GpuStill(Value):
    """All devices of a job, while no kernel runs on any, or one runs all the time."""

    runs: bool = False
    """On some device a kernel runs."""
    power: float | None = None
    """Share of the power limit, the highest of the devices on which one runs; None: unknown."""
    bytes_s: float = 0.0
    """Over PCIe, of the device with the most, and over InfiniBand."""
    lacks: tuple[DeviceLack, ...] = ()


class GpuUse(Value):
    """What the devices of one job show. None means unknown."""

    device: int | None = None
    """Number of the device with the most life."""
    util: float | None = None
    """Per cent, of that device."""
    power: float | None = None
    """The same device's power, as a share of its limit."""
    clock: float | None = None
    """The lowest clock, as a share of that device's highest."""
    slowed_by: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    """Pids of processes outside the job on the same devices."""
    other_names: tuple[str, ...] = ()
    """The same for a person: pid, command and user, as far as they are known."""
    draw: float | None = None
    """Power of all devices, as a share of their limits."""
    still: GpuStill | None = None
    """None: some device computes now and then, or that is unknown."""

    @property
    def works(self) -> bool:
        """It computes: neither idle nor a kernel that may only spin."""
        if self.util is None or self.util <= 0:
            return False
        return self.util < FLAT_UTIL or (self.power is not None and self.power > IDLE_POWER_SHARE)


class GpuSeen(Value):
    uses: dict[int, GpuUse] = {}  # noqa: RUF012 - msgspec copies it
    """Of each rank, by pid."""
    others: tuple[str, ...] = ()
    """Others with memory on them, for a person."""
    xids: tuple[GpuXid, ...] = ()
    """Errors that the driver reported since the job began."""


class DeviceLook(Value):
    """What one stack sample shows of ranks that wait for their GPUs."""

    stands: str = ""
    """Equal in two samples: each rank is in the same native call, frames and local variables.
    Empty: some could not be read."""
    waits: bool = True
    """Some rank waits for its device, in no call that loads, compiles or initialises."""
    others_cpu_s: float = 0.0
    """CPU time so far of the complete tree without the threads that wait so."""
