"""One piece of evidence with what many rules ask of it, worked out once. Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from watchdog_train.core.diagnosis.collectives import compare, from_log, not_come
from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.first_failure import FirstFailure, first_failure
from watchdog_train.core.diagnosis.log_search import LogIndex
from watchdog_train.core.diagnosis.ranks import standings

_WORLD_CAP = 4096


class Scene:
    """Evidence, its logs prepared for searching, and how its ranks stand to each other."""

    def __init__(self, evidence: Evidence, frames: Mapping[str, str]) -> None:
        self.evidence = evidence
        self.logs = LogIndex(evidence.logs)
        self.standings = standings(evidence.processes, frames)
        self.facts = (*evidence.collectives, *from_log(self.logs.lines()))
        self.recorded = compare(self.facts)

    @cached_property
    def ranks_seen(self) -> frozenset[int]:
        """Ranks that stacks or records tell something of."""
        seen = {p.rank for p in self.evidence.processes if p.role == "rank" and p.threads}
        seen |= {fact.rank for fact in self.facts}
        return frozenset(rank for rank in seen if rank is not None)

    @cached_property
    def silent_ranks(self) -> tuple[int, ...]:
        """Ranks of which nothing is known, as far as the size of the job is known."""
        size = self.evidence.world_size or 0
        return tuple(sorted(set(range(min(size, _WORLD_CAP))) - self.ranks_seen))

    @cached_property
    def not_come(self) -> tuple[int, ...]:
        """Ranks that the waiting ones miss, by what these have printed."""
        return not_come(self.logs.lines())

    @cached_property
    def first_failure(self) -> FirstFailure | None:
        """Who ended badly first, as far as ends were recorded."""
        return first_failure(self.evidence.processes, self.evidence.logs)

    @cached_property
    def dumped(self) -> bool:
        """Whether there is the stack of any process."""
        return any(process.threads for process in self.evidence.processes)
