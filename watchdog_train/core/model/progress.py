"""How far a training is, by rank, and where each rank has been."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

from watchdog_train.core.model.reasons import Why
from watchdog_train.core.model.words import Phase, Value

RankSpans = tuple[tuple[int, int], ...]
"""The first and the last of each run of rank numbers, in order: short for thousands of ranks."""


def spans(ranks: Iterable[int]) -> RankSpans:
    """Of rank numbers in any order; of one that is there twice, two."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return tuple(found)


class PhaseRanks(Value, omit_defaults=True):
    """The ranks in one phase, as the log has them: short, however many they are."""

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
    """Of each rank its phase and step. Those without a step are apart."""
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
    """A rank as status shows it."""

    rank: int
    local_rank: int | None
    pid: int | None
    """None: recorded, and several processes say that they are this rank."""
    host: str | None
    step: int | None
    phase: Phase
    beat_age_s: float | None
    state: str | None
    workers: tuple[int, ...]


class Milestone(Value):
    """A named place on the way of one process, as it tells it itself; times are monotonic."""

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
    """At the recent pace."""
    steps_s: float | None = None
    """The recent pace, once it is steady."""
    samples_s: float | None = None
    loss: float | None = None


StepPlace = Literal["batch", "backward", "backward-end"]
"""It has its batch, begins a backward pass, has ended it."""


WarningKind = Literal["disk", "memory", "gpu-shared", "unsaved"]


class Ahead(Value):
    """One thing that will go wrong."""

    kind: WarningKind
    about: str
    """A path, or empty."""
    why: Why

    @property
    def key(self) -> tuple[str, str]:
        """The same while it goes on."""
        return self.kind, self.about


class Straggler(Value):
    """The rank that comes last in most steps. The others wait for it where they are in lock-step.

    Mean values over `steps` steps that were looked at.
    """

    rank: int
    pid: int
    place: StepPlace
    """The first one in a step at which it is late."""
    behind_s: float
    """After the others, of which the median counts."""
    step_s: float
    lost: float
    """Share of each step in which it is behind."""
    share: float
    """Of all that is lost by ranks that come last."""
    steps: int
