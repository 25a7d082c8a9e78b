"""Ancestry among the living members of an attempt, and the roles that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from watchdog_train.core.model import Member, ProcessId, ProcessRow, SlotReading


def parents(row: ProcessRow, everybody: Mapping[int, ProcessRow]) -> Iterator[ProcessRow]:
    """Its parent, the parent's parent and so on; a parent is never younger than its child."""
    for _ in range(len(everybody)):
        above = everybody.get(row.ppid)
        if above is None or above.start > row.start:
            return
        yield above
        row = above


class Kinship:
    """Over members and slots by pid; members may change between two calls."""

    def __init__(self, by_pid: Mapping[int, Member], slots: Mapping[int, SlotReading]) -> None:
        self._by_pid = by_pid
        self._slots = slots
        self.spawning = self._spawning()

    def ancestors(self, member: Member) -> Iterable[Member]:
        """Its parent, the parent's parent and so on, while they live."""
        seen: set[int] = set()
        above = self._by_pid.get(member.ppid)
        while above is not None and above.pid not in seen:
            seen.add(above.pid)
            yield above
            above = self._by_pid.get(above.ppid)

    def wrappers(self) -> frozenset[ProcessId]:
        """Ancestors of launchers and ranks: shells, `uv run`, `time`; not the keeper."""
        return frozenset(
            above.identity
            for member in self._by_pid.values()
            if member.role in ("launcher", "rank")
            for above in self.ancestors(member)
            if above.role == "other"
        )

    def _spawning(self) -> frozenset[int]:
        """Scripts that are no rank themselves but have started the ranks.

        The parent of torch.multiprocessing.spawn, or a library's command that starts the script,
        seems to be a training of one process until its children join a process group or make steps,
        and then waits for them without a sign of life. One that takes steps is a rank, whatever
        helper of it joins a group of its own; one that takes none was and stays a launcher.
        """
        found = {
            member.pid
            for member in self._by_pid.values()
            if member.role == "launcher"
            and (slot := self._slots.get(member.pid)) is not None
            and _may_be_spawning(slot)
        }
        for member in self._by_pid.values():
            slot = self._slots.get(member.pid)
            if slot is None or slot.role != "rank":
                continue
            if (slot.world_size or 1) > 1 or slot.step is not None:
                found.update(
                    above.pid
                    for above in self.ancestors(member)
                    if above.pid in self._slots and _may_be_spawning(self._slots[above.pid])
                )
        return frozenset(found)

    def _ranks_above(self, member: Member) -> Iterable[SlotReading]:
        for above in self.ancestors(member):
            slot = self._slots.get(above.pid)
            if slot is not None and slot.role == "rank" and above.pid not in self.spawning:
                yield slot

    def inside_a_rank(self, member: Member, slot: SlotReading) -> bool:
        """A helper script started by a rank is not a rank, though it runs the same hooks.

        It inherits the rank's number, or makes a group of its own; a rank that another rank has
        started (Lightning does that) has another number in the same group.
        """
        return any(
            (slot.world_size or 1) == 1
            or slot.world_size != above.world_size
            or slot.rank == above.rank
            for above in self._ranks_above(member)
        )

    def is_orphan(self, member: Member) -> bool:
        """Whether no process above it has a heartbeat."""
        return not any(above.pid in self._slots for above in self.ancestors(member))

    def rank_above(self, member: Member) -> int | None:
        above = next(iter(self._ranks_above(member)), None)
        return None if above is None else above.rank or 0


def _may_be_spawning(slot: SlotReading) -> bool:
    return slot.role == "rank" and slot.world_size is None and slot.step is None
