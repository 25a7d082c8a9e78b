"""What of the GPUs that can be seen says anything about one job. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from watchdog_train.core.model.gpu import GpuDevice, GpuReading, GpuUse

IN_USE_BYTES = 256 << 20
"""Of GPU memory: a device without even the context of a process holds less."""


def job_use(reading: GpuReading, pids: AbstractSet[int], of: int | None = None) -> GpuUse | None:
    """What the devices of one job show; None where it has none, or nobody can tell which.

    A device that somebody else computes on, too, says nothing about the job: its utilisation is
    unknown then. In a container the driver's pids mean nothing to us; there every device in use
    that can be seen is taken for the job's.

    Args:
        reading: one look.
        pids: of the whole job.
        of: one process of it, of which alone the devices count; in a container nobody can tell
            which they are.
    """
    if of is not None and reading.foreign_pids:
        return None
    mine = own_devices(reading, pids if of is None else {of})
    others = set[int]()
    if not reading.foreign_pids:
        others = {pid for device in mine for pid in _pids(device) - pids}
    if not mine:
        return None
    shown = [
        GpuUse(
            device=device.index,
            util=device.util,
            power=_share(device.power_w, device.power_limit_w),
        )
        for device in mine
        if device.util is not None and not (_pids(device) & others)
    ]
    best = max(shown, key=lambda use: (use.works, use.util or 0.0, use.power or 0.0), default=None)
    clocks = [_share(device.clock_mhz, device.clock_max_mhz) for device in mine]
    return GpuUse(
        device=best.device if best is not None else mine[0].index,
        util=best.util if best is not None else None,
        power=best.power if best is not None else None,
        clock=min((clock for clock in clocks if clock is not None), default=None),
        slowed_by=tuple(sorted({why for device in mine for why in device.slowed_by})),
        others=tuple(sorted(others))[:8],
    )


def own_devices(reading: GpuReading, pids: AbstractSet[int]) -> list[GpuDevice]:
    """Those on which the job has memory; in a container every one in use is taken for its own."""
    if reading.foreign_pids:
        return [d for d in reading.devices if (d.memory_used_bytes or 0) >= IN_USE_BYTES]
    return [d for d in reading.devices if _pids(d) & pids]


def _pids(device: GpuDevice) -> set[int]:
    return {process.pid for process in device.processes or ()}


def _share(value: float | None, limit: float | None) -> float | None:
    return round(value / limit, 3) if value is not None and limit else None
