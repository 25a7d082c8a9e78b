"""What GPUs show from outside, as values.

The limits are assumed, not measured on a device: a GPU whose meaning is not clear changes nothing,
and GPUs that seem to spin are only reported.
"""

from __future__ import annotations

from watchdog_train.core.model.words import Value

FLAT_UTIL = 98.0
"""Per cent: from here on a kernel has run all the time, whatever it did."""
IDLE_POWER_SHARE = 0.25
"""Of the power limit: work at full utilisation takes more; a kernel that spins in a collective is
said to stay near idle power (not measured). Low on purpose: a healthy job of small kernels takes
little power, too, and must count as alive."""


class GpuProcess(Value):
    """A process with memory on a device."""

    pid: int
    memory_bytes: int | None = None


class GpuDevice(Value):
    """One look at one device. None means that the driver would not say."""

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
    """Why its clock is held down: heat, power, an external brake."""
    mig: bool | None = None
    """It is split: utilisation is not told then."""
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def key(self) -> str:
        """The same for the same device at every look."""
        return self.uuid or f"index {self.index}"


class GpuXid(Value):
    """A critical error that the driver has reported while we looked."""

    index: int | None
    code: int


class GpuReading(Value):
    """One look at all devices."""

    devices: tuple[GpuDevice, ...] = ()
    xids: tuple[GpuXid, ...] = ()
    """The newest 32 since the looks began."""
    driver: str | None = None
    foreign_pids: bool = False
    """The driver's pids are those of another pid namespace: we are in a container."""
    problem: str | None = None
    """Why there is nothing to be seen, and never will be."""
    at: float = 0.0
    """When it was taken, on the monotonic clock of the machine, seconds; 0: not told."""


class GpuNeed(Value):
    """What a job has held at most on one device; None: the driver would not say."""

    device: str
    bytes: int | None


class GpuClaim(Value):
    """What a job has used of the GPUs."""

    needs: tuple[GpuNeed, ...] = ()
    beside: frozenset[int] = frozenset()
    """Pids of others that had memory on the same devices while it ran."""


class GpuHolder(Value):
    """Somebody who has memory on a device that a job needs."""

    device: int
    pid: int
    memory_bytes: int | None = None
    name: str = ""
    """For a person: pid, command and user, as far as they are known."""


class GpuHold(Value):
    """What stands in the way of another attempt."""

    ours: tuple[GpuHolder, ...] = ()
    others: tuple[GpuHolder, ...] = ()
    unnamed: tuple[int, ...] = ()
    """Devices whose memory is in use, the driver does not tell by whom."""
    host: str = ""
    """The machine, as its tree names it."""
    answered: bool = True
    """False: the driver was asked and has said nothing yet."""
    asked_at: float = 0.0

    @property
    def is_free(self) -> bool:
        """Nobody stands in the way."""
        return self.answered and not (self.ours or self.others or self.unnamed)


class GpuUse(Value):
    """What the devices of one job show. None means unknown."""

    device: int | None = None
    """The one that shows the most life, by the driver's number."""
    util: float | None = None
    """Per cent, of that device."""
    power: float | None = None
    """The same device's power, as a share of its limit."""
    clock: float | None = None
    """The lowest clock, as a share of that device's highest."""
    slowed_by: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    """Processes of somebody else on the same devices, by pid."""
    other_names: tuple[str, ...] = ()
    """The same for a person: pid, command and user, as far as they are known."""

    @property
    def works(self) -> bool:
        """Something is computed: neither idle nor a kernel that may only spin."""
        if self.util is None or self.util <= 0:
            return False
        return self.util < FLAT_UTIL or (self.power is not None and self.power > IDLE_POWER_SHARE)

    @property
    def spins(self) -> bool:
        """Full utilisation near idle power: a kernel waits, for a collective or a flag."""
        if self.util is None or self.power is None:
            return False
        return self.util >= FLAT_UTIL and self.power <= IDLE_POWER_SHARE


class GpuSeen(Value):
    """What evidence is given of the GPUs of a job."""

    uses: dict[int, GpuUse] = {}  # noqa: RUF012 - msgspec copies it
    """Of each rank, by pid."""
    others: tuple[str, ...] = ()
    """Who else has memory on them, for a person."""
    xids: tuple[GpuXid, ...] = ()
    """What the driver has reported of them since the job began."""
