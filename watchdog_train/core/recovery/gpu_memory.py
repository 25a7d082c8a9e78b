"""GPU memory between two attempts: who holds what the next attempt needs. Pure.

Nothing is started while an old process of the job still has GPU memory, or while another process
has taken what the job had before: a start there ends with an out-of-memory error that is not the
training's. wtrain names the holder and waits; after the limit the run ends with 75.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, Wait
from watchdog_train.core.detection.gpu import IN_USE_BYTES, own_devices
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.machines import hostname_of
from watchdog_train.core.model import GuiltyNode, Why
from watchdog_train.core.model.gpu import (
    GpuClaim,
    GpuDevice,
    GpuHold,
    GpuHolder,
    GpuNeed,
    GpuReading,
)
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.outcome import give_up
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE

NEED_SHARE = 0.9
"""Of the job's maximum: allocators keep more than they use, and a neighbour present all the time
may have grown a little. Chosen, not measured."""
ANSWER_S = 8.0
"""One more answer of the driver after the tree is gone; it is asked every two seconds."""
UNNAMED_S = 60.0
"""For memory in use that the driver assigns to no process (a container, another kind of process):
a process of the job may be about to free it; later the owner stays unknown."""
LOOK_AGAIN_S = 0.25
SAY_AGAIN_S = 10.0


def claimed(before: GpuClaim, reading: GpuReading, pids: AbstractSet[int]) -> GpuClaim:
    """The most that the job, of these pids, has held on each device; grows with each reading."""
    needs = {need.device: need.bytes for need in before.needs}
    beside = set(before.beside)
    for device in own_devices(reading, pids):
        held = _held_bytes(device, pids, foreign=reading.foreign_pids)
        known = [one for one in (needs.get(device.key), held) if one is not None]
        needs[device.key] = max(known, default=None)
        if not reading.foreign_pids:
            beside |= {process.pid for process in device.processes or ()} - pids
    return GpuClaim(
        needs=tuple(GpuNeed(device=key, bytes=size) for key, size in sorted(needs.items())),
        beside=frozenset(beside),
    )


def _held_bytes(device: GpuDevice, pids: AbstractSet[int], *, foreign: bool) -> int | None:
    if foreign:
        return device.memory_used_bytes
    sizes = [one.memory_bytes for one in device.processes or () if one.pid in pids]
    told = [size for size in sizes if size is not None]
    return sum(told) if sizes and len(told) == len(sizes) else None


def hold(claim: GpuClaim, reading: GpuReading, ours: AbstractSet[int]) -> GpuHold:
    """Processes that prevent another attempt, by a reading after the end of the job.

    `ours` are pids that belong to the job alone by now.
    """
    mine: list[GpuHolder] = []
    others: list[GpuHolder] = []
    unnamed: list[int] = []
    needs = {need.device: need.bytes for need in claim.needs}
    for device in reading.devices:
        processes = () if reading.foreign_pids else device.processes or ()
        mine += [_holder(device, one.pid, one.memory_bytes) for one in processes if one.pid in ours]
        if device.key not in needs or _has_room(device, needs[device.key]):
            continue
        need = needs[device.key]
        theirs = [
            _holder(device, one.pid, one.memory_bytes)
            for one in processes
            if one.pid not in ours and (need is not None or one.pid not in claim.beside)
        ]
        others += theirs
        # If the needed size is unknown, memory of unnamed processes proves no lack of room.
        if need is not None and not theirs and not any(o.device == device.index for o in mine):
            unnamed.append(device.index)
    return GpuHold(ours=tuple(mine), others=tuple(others), unnamed=tuple(unnamed))


def strangers(
    claim: GpuClaim, reading: GpuReading, ours: AbstractSet[int]
) -> tuple[GpuHolder, ...]:
    if reading.foreign_pids:
        return ()
    devices = {need.device for need in claim.needs}
    return tuple(
        _holder(device, one.pid, one.memory_bytes)
        for device in reading.devices
        if device.key in devices
        for one in device.processes or ()
        if one.pid not in ours and (one.memory_bytes is None or one.memory_bytes >= IN_USE_BYTES)
    )


def _holder(device: GpuDevice, pid: int, size: int | None) -> GpuHolder:
    return GpuHolder(device=device.index, pid=pid, memory_bytes=size)


def _has_room(device: GpuDevice, need: int | None) -> bool:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if used is not None and used < IN_USE_BYTES:
        return True
    if need is None or used is None or total is None:
        return False
    return total - used >= NEED_SHARE * need


def before_launch(observation: Observation, state: State, policy: Policy) -> Action | None:
    found = observation.gpu_hold
    said = state.gpu_held
    if found is None:  # no GPU of the job, or no reading any more: unknown does not stop a run
        return None
    if not found.answered:
        late = observation.now - found.asked_at >= ANSWER_S
        return None if late else Wait(until=observation.now + LOOK_AGAIN_S)
    if found.is_free:
        if said is None:
            return None
        waited_s = max(0.0, observation.now - state.gpu_held_mono)
        return Record(events=(e.GpuMemoryFree(waited_s=round(waited_s, 1)),))
    since = observation.now if said is None else state.gpu_held_mono
    named = bool(found.ours or found.others)
    limit_s = policy.recovery.gpu_wait_s
    until = since + (limit_s if named else min(limit_s, UNNAMED_S))
    if said is None or (_who(found) != _who(said) and observation.now - said.mono >= SAY_AGAIN_S):
        return Record(events=(_held(found, limit_s),))
    if observation.now < until:
        return Wait(until=min(until, observation.now + LOOK_AGAIN_S))
    if not named:
        return None
    why = Why(
        "gpu-ours-holds" if found.ours else "gpu-other-holds",
        limit_s=limit_s,
        holders=(*found.ours, *found.others),
    )
    guilty = GuiltyNode(host=hostname_of(found.host, state), why=why)
    return give_up(why, EXIT_RETRY_ELSEWHERE, guilty=(guilty,))


def _held(found: GpuHold, limit_s: float) -> e.GpuMemoryHeld:
    if found.ours:
        why = Why("gpu-not-given-back", holders=found.ours)
    elif found.others:
        why = Why("gpu-taken", holders=found.others)
    else:
        why = Why("gpu-unnamed", names=tuple(map(str, found.unnamed)))
        limit_s = min(limit_s, UNNAMED_S)
    return e.GpuMemoryHeld(
        ours=found.ours,
        others=found.others,
        unnamed=found.unnamed,
        why=why.plus(Why("waited-for", limit_s=limit_s)),
    )


def _who(found: GpuHold | e.GpuMemoryHeld) -> object:
    return (
        frozenset((one.device, one.pid) for one in found.ours),
        frozenset((one.device, one.pid) for one in found.others),
        found.unnamed,
    )
