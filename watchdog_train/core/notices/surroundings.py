"""What a training runs beside: GPU, swap, storage, pressure; and what of it changed. Pure."""

from __future__ import annotations

from watchdog_train.core.model import Sample, Value, Why, WhyCode

CLOCK_FALLS = 0.8
"""Below this share of the clock before: more than what a GPU does by itself between kernels."""
WAITING_RISES = 0.2
"""Of the looks that find somebody in state D."""
PRESSURE_RISES = 15.0
"""Per cent of the time; an idle machine has 0, a busy one a few."""
SWAP_BYTES_S = 1e6
"""A machine that is only tidying up moves less."""
UTIL_FALLS = 0.6


class Means(Value, frozen=True, kw_only=True):
    """Of some time. None means unknown all the time."""

    gpu_util: float | None = None
    """Per cent."""
    gpu_clock: float | None = None
    """Share of the highest."""
    waiting: float | None = None
    """Share of the looks with somebody in state D."""
    swap_bytes_s: float | None = None
    memory_pressure: float | None = None
    """Per cent of the time in which something waited for it; the machine's, as for the next two."""
    io_pressure: float | None = None
    cpu_pressure: float | None = None
    others: tuple[str, ...] = ()
    """Who else was seen on the job's GPUs."""
    slowed_by: tuple[str, ...] = ()


class Tally(Value, frozen=True, kw_only=True):
    """Sums, to make means of: for each of NUMBERS the sum and how many knew it."""

    sums: tuple[tuple[float, int], ...] = ((0.0, 0),) * 6
    swap: tuple[float, int, float, int] | None = None
    """Time and total at the first look that knew it, and at the newest."""
    others: tuple[str, ...] = ()
    slowed_by: tuple[str, ...] = ()


def fold(tally: Tally, sample: Sample) -> Tally:
    """The sums after one more look."""
    gpu, host = sample.gpu, sample.host
    waiting = any(member.state == "D" for member in sample.members)
    values = (
        gpu.util if gpu is not None else None,
        gpu.clock if gpu is not None else None,
        float(waiting),
        host.memory_pressure if host is not None else None,
        host.io_pressure if host is not None else None,
        host.cpu_pressure if host is not None else None,
    )
    swap = tally.swap
    if host is not None and host.swap_bytes is not None:
        first = swap[:2] if swap is not None else (sample.at, host.swap_bytes)
        swap = (*first, sample.at, host.swap_bytes)
    others, slowed_by = tally.others, tally.slowed_by
    if gpu is not None:
        others = tuple(sorted({*others, *gpu.other_names}))[:8]
        slowed_by = tuple(sorted({*slowed_by, *gpu.slowed_by}))
    return Tally(
        sums=tuple(
            (total, count) if value is None else (total + value, count + 1)
            for (total, count), value in zip(tally.sums, values, strict=True)
        ),
        swap=swap,
        others=others,
        slowed_by=slowed_by,
    )


def means(tally: Tally) -> Means:
    """The means of these sums."""
    util, clock, waiting, memory, io, cpu = (
        total / count if count else None for total, count in tally.sums
    )
    swap = tally.swap
    return Means(
        gpu_util=util,
        gpu_clock=clock,
        waiting=waiting,
        swap_bytes_s=(swap[3] - swap[1]) / (swap[2] - swap[0])
        if swap is not None and swap[2] > swap[0]
        else None,
        memory_pressure=memory,
        io_pressure=io,
        cpu_pressure=cpu,
        others=tally.others,
        slowed_by=tally.slowed_by,
    )


def changes(before: Means, now: Means) -> tuple[Why, ...]:
    """What is different, the likeliest causes of slow steps first; no verdict on which it was."""
    found = []
    strangers = tuple(name for name in now.others if name not in before.others)
    if strangers:
        found.append(Why("gpu-shared", names=strangers))
    held = tuple(why for why in now.slowed_by if why not in before.slowed_by)
    fell = _fell(before.gpu_clock, now.gpu_clock, CLOCK_FALLS)
    if fell:
        found.append(_change("gpu-clock", now.gpu_clock, before.gpu_clock, 100.0))
    if held:
        found.append(Why("gpu-held-down", names=held))
    swap_s = now.swap_bytes_s or 0.0
    if swap_s > SWAP_BYTES_S and swap_s > 3 * (before.swap_bytes_s or 0.0):
        found.append(Why("swaps", size=int(swap_s)))
    pressures: tuple[tuple[WhyCode, float | None, float | None], ...] = (
        ("memory-pressure", before.memory_pressure, now.memory_pressure),
        ("storage-pressure", before.io_pressure, now.io_pressure),
        ("cpu-pressure", before.cpu_pressure, now.cpu_pressure),
    )
    for code, old, new in pressures:
        if old is not None and new is not None and new - old > PRESSURE_RISES:
            found.append(_change(code, new, old))
    if now.waiting is not None and now.waiting - (before.waiting or 0.0) > WAITING_RISES:
        found.append(_change("held-by-kernel", now.waiting, before.waiting, 100.0))
    if _fell(before.gpu_util, now.gpu_util, UTIL_FALLS):
        found.append(_change("gpu-used-less", now.gpu_util, before.gpu_util))
    return tuple(found)


def _change(code: WhyCode, now: float | None, before: float | None, to: float = 1.0) -> Why:
    return Why(code, number=to * (now or 0.0), before=to * (before or 0.0))


def _fell(before: float | None, now: float | None, share: float) -> bool:
    return before is not None and now is not None and now < share * before
