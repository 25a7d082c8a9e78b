"""The part of the visible GPUs' readings that concerns one job. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from watchdog_train.core.model.gpu import (
    FLAT_UTIL,
    DeviceLack,
    GpuDevice,
    GpuReading,
    GpuStill,
    GpuUse,
)

IN_USE_BYTES = 256 << 20
"""Of GPU memory: a device below this has not even the context of a process."""


def job_use(
    reading: GpuReading, pids: AbstractSet[int], of: int | None = None, *, ranks: int = 1
) -> GpuUse | None:
    """What the devices of one job show; None if it has none, or they cannot be identified.

    Utilisation is unknown for a device on which others compute too. In a container the driver's
    pids do not match ours; there every visible device in use counts as the job's.

    Args:
        reading: one reading.
        pids: of the complete job.
        of: one of its processes, to count its devices alone; unknown in a container.
        ranks: of the job; in a container more processes than that belong to others.
    """
    if of is not None and reading.foreign_pids:
        return None
    mine = own_devices(reading, pids if of is None else {of})
    others = set[int]()
    if not reading.foreign_pids:
        others = {pid for device in mine for pid in _pids(device) - pids}
    if not mine:
        return None
    alone = [device for device in mine if not _pids(device) & others]
    shown = [
        GpuUse(
            device=device.index,
            util=device.util,
            power=_share(device.power_w, device.power_limit_w),
        )
        for device in alone
        if device.util is not None
    ]
    best = max(shown, key=lambda use: (use.works, use.util or 0.0, use.power or 0.0), default=None)
    draws = [_share(device.power_w, device.power_limit_w) for device in alone]
    known = [draw for draw in draws if draw is not None]
    shared = bool(others)
    if reading.foreign_pids:
        shared = not 0 < len(set[int]().union(*map(_pids, mine))) <= ranks
    clocks = [_share(device.clock_mhz, device.clock_max_mhz) for device in mine]
    return GpuUse(
        device=best.device if best is not None else mine[0].index,
        util=best.util if best is not None else None,
        power=best.power if best is not None else None,
        clock=min((clock for clock in clocks if clock is not None), default=None),
        slowed_by=tuple(sorted({why for device in mine for why in device.slowed_by})),
        others=tuple(sorted(others))[:8],
        draw=sum(known) / len(known) if known and len(known) == len(alone) else None,
        still=_still(alone, reading, shared=shared),
    )


def _still(mine: list[GpuDevice], reading: GpuReading, *, shared: bool) -> GpuStill | None:
    """Of the devices that only the job uses; None if one computes now and then."""
    if any(device.util is not None and 0 < device.util < FLAT_UTIL for device in mine):
        return None
    running = [device for device in mine if device.util]
    powers = [_share(device.power_w, device.power_limit_w) for device in running]
    found: dict[DeviceLack, bool] = {
        "utilisation": any(device.util is None for device in mine),
        "power": None in powers,
        "full-clocks": any(device.slowed_by for device in mine),
        "whole-GPUs": any(device.mig for device in mine),
        "GPUs-of-its-own": shared,
        "PCIe-counters": any(device.pcie_bytes_s is None for device in mine),
        "InfiniBand-counters": reading.rdma_bytes_s is None,
    }
    return GpuStill(
        runs=bool(running),
        power=None if None in powers else max((p for p in powers if p is not None), default=0.0),
        bytes_s=max([reading.rdma_bytes_s or 0.0, *(d.pcie_bytes_s or 0.0 for d in mine)]),
        lacks=tuple(lack for lack, is_so in found.items() if is_so),
    )


def own_devices(reading: GpuReading, pids: AbstractSet[int]) -> list[GpuDevice]:
    """Devices with memory of the job; in a container every one in use."""
    if reading.foreign_pids:
        return [d for d in reading.devices if (d.memory_used_bytes or 0) >= IN_USE_BYTES]
    return [d for d in reading.devices if _pids(d) & pids]


def _pids(device: GpuDevice) -> set[int]:
    return {process.pid for process in device.processes or ()}


def _share(value: float | None, limit: float | None) -> float | None:
    return round(value / limit, 3) if value is not None and limit else None
