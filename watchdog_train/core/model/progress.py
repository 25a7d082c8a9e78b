"""How far a training is, by rank, and where each rank has been."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

from watchdog_train.core.model.reasons import Why
from watchdog_train.core.model.words import Phase, Value

RankSpans = tuple[tuple[int, int], ...]
"""First and last of each run of rank numbers, in order: short for thousands of ranks."""


def spans(ranks: Iterable[int]) -> RankSpans:
    """Of rank numbers in any order; a number that comes twice gives two spans."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return tuple(found)


class PhaseRanks(Value, omit_defaults=True):
    """The ranks in one phase, in a form that stays short for thousands of them."""

    phase: Phase
    ranks: RankSpans
    step: int | None = None
    """The newest of any of them."""
    behind: tuple[int, ...] = ()
    """How many steps each of them is behind it; empty: all are at it."""

    def each(self) -> Iterator[tuple[int, int | None]]:
        """Rank and step."""
        numbers = (rank for first, last in self.ranks for rank in range(first, last + 1))
        for rank, behind in itertools.zip_longest(numbers, self.behind):
            if rank is None:  # a damaged log
                return
            yield rank, None if self.step is None else self.step - (behind or 0)


def by_phase(said: Iterable[tuple[int, Phase, int | None]]) -> tuple[PhaseRanks, ...]:
    """Each rank's phase and step; ranks without a step are separate."""
    groups: dict[tuple[Phase, bool], list[tuple[int, int]]] = {}
    for rank, phase, step in said:
        groups.setdefault((phase, step is not None), []).append((rank, step or 0))
    return tuple(_alike(phase, sorted(of), known=known) for (phase, known), of in groups.items())


def _alike(phase: Phase, of: list[tuple[int, int]], *, known: bool) -> PhaseRanks:
    newest = max(step for _, step in of)
    behind = tuple(newest - step for _, step in of)
    return PhaseRanks(
        phase=phase,
        ranks=spans(rank for rank, _ in of),
        step=newest if known else None,
        behind=behind if any(behind) else (),
    )


class RankStatus(Value):
    rank: int
    local_rank: int | None
    pid: int | None
    """None: recorded, and several processes claim this rank."""
    host: str | None
    step: int | None
    phase: Phase
    beat_age_s: float | None
    state: str | None
    workers: tuple[int, ...]


class Milestone(Value):
    """A named place in the course of one process, by its own report; times are monotonic."""

    name: str
    begin: float
    end: float | None = None
    """None: it is inside."""
    times: int = 1
    """How often it came there; begin and end are of the last time."""
    failed: bool = False
    """An exception left it."""
    mark: bool = False
    """The user's own, by mark()."""


class RankPlaces(Value):
    """The milestones of one judged process, by their begin."""

    rank: int
    local_rank: int | None
    pid: int
    milestones: tuple[Milestone, ...]


class RunProgress(Value):
    """What a person wants to read first. None is unknown."""

    step: int | None = None
    total_steps: int | None = None
    percent: float | None = None
    eta_s: float | None = None
    steps_s: float | None = None
    """The recent steps per second, once steady; `eta_s` is computed from it."""
    samples_s: float | None = None
    loss: float | None = None


StepPlace = Literal["batch", "backward", "backward-end"]
"""It has its batch, begins a backward pass, has ended it."""


WarningKind = Literal["disk", "memory", "gpu-shared", "unsaved"]


class Ahead(Value):
    kind: WarningKind
    about: str
    """A path, or empty."""
    why: Why

    @property
    def key(self) -> tuple[str, str]:
        """Equal while the condition lasts."""
        return self.kind, self.about


class Straggler(Value):
    """The rank that is last in most steps; the others wait for it if they are in lock-step.

    Means over the `steps` steps that were sampled.
    """

    rank: int
    pid: int
    place: StepPlace
    """The first place in a step at which it is late."""
    behind_s: float
    """Behind the median of the others."""
    step_s: float
    lost: float
    """Share of each step in which it is behind."""
    share: float
    """Of all time lost to late ranks."""
    steps: int
